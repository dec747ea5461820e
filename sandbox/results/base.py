"""The base of all results."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict

from sandbox.text.excerpt import SHOWN_CHARS, without_middle


class Result(BaseModel):
    """Base of all results: frozen; fields the sandbox sends beyond the known ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """What a model is shown of it, in about ``chars`` characters."""
        return without_middle(self._words(), chars)

    def _words(self) -> str:
        """All of it as text; JSON for what only the host's own code asks for."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
