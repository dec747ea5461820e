"""Texts as vectors, through litellm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.budget import Usage, charge
from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode
from sandbox.interrupts import reraise_interrupts

from .brain import ModelError
from .faults import translated
from .litellm_model import load
from .switch import refuse_if_forbidden


class LiteLLMEmbedder:
    """Makes vectors of texts with ``model`` (in litellm's form, ``provider/name``); each call is charged to the run around it.

    ``options`` go to litellm as they are (api_base, api_key, dimensions, ...). Raises ModelError.
    """

    def __init__(self, model: str, *, timeout_seconds: float = 60.0, **options: Any) -> None:
        if not model or not isinstance(model, str):
            raise ModelError(
                ErrorCode.invalid_configuration, f"{model!r} is no name of a model.", "Give it as provider/name."
            )
        self.model = model
        self.timeout_seconds = timeout_seconds
        self.options = options

    @reraise_interrupts()
    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, in their order."""
        refuse_if_forbidden(self.model)
        litellm = load()
        try:
            raw = litellm.embedding(
                model=self.model, input=list(texts), timeout=self.timeout_seconds, max_retries=1, **self.options
            )
        except Exception as error:
            charge(Usage(calls=1, failed_calls=1))
            known = translated(error, self.model)
            if known is None:
                raise
            raise known from error
        charge(self._usage(raw))
        rows = [row if isinstance(row, dict) else row.model_dump() for row in raw.data or ()]
        vectors = [list(map(float, row["embedding"])) for row in sorted(rows, key=lambda row: row["index"])]
        if len(vectors) != len(texts):
            raise ModelError(
                AgentErrorCode.model_unavailable,
                f"{self.model} answered {len(texts)} texts with {len(vectors)} vectors.",
                "Use another model.",
            )
        return vectors

    def _usage(self, raw: Any) -> Usage:
        cost = (getattr(raw, "_hidden_params", None) or {}).get("response_cost")
        return Usage(
            calls=1,
            input_tokens=int(getattr(raw.usage, "prompt_tokens", 0) or 0),
            cost_usd=float(cost or 0.0),
            unpriced_calls=0 if isinstance(cost, int | float) else 1,
        )
