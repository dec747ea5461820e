"""The shape of what a model reads about a fault."""

from __future__ import annotations

from typing import Any, NamedTuple


class Wording(NamedTuple):
    """Sentence, hint, name of the next tool (or None), and whether the same call can help."""

    message: str
    hint: str
    next_tool: str | None = None
    retryable: bool = False


def size(count: Any) -> str:
    """A byte count as a person reads it: "3.1 MiB"."""
    number = float(count) if isinstance(count, int | float) else 0.0
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:g} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
