"""The shape of what a model reads about a fault."""

from __future__ import annotations

from typing import NamedTuple


class Wording(NamedTuple):
    """Sentence, hint, name of the next tool (or None), and whether the same call can help."""

    message: str
    hint: str
    next_tool: str | None = None
    retryable: bool = False
