"""What all results of operations are."""

from __future__ import annotations

import json
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from sandbox.text.excerpt import SHOWN_CHARS, without_middle
from sandbox.text.masking import Mask, map_texts


class Result(BaseModel):
    """Base of all results: frozen; fields the sandbox sends beyond the known ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    # ``to_text`` takes a number of characters, and says itself what it left out: an envelope adds nothing to that.
    cuts_itself: ClassVar[bool] = True

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return what a model is shown of it, in about ``chars`` characters."""
        return without_middle(self._words(), chars)

    def masked(self, mask: Mask) -> Self:
        """Return the same with every secret in its texts and bytes masked."""
        masked: Self = map_texts(self, mask.text, mask.whole)
        return masked

    def _words(self) -> str:
        """Return all of it as text: JSON, if the result is for the host's own code alone."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
