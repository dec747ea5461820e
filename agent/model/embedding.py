"""Texts as vectors, through litellm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from agent.core.budget import Usage, charge
from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode
from sandbox.interrupts import reraise_interrupts

from .attempts import attempts
from .brain import ModelError
from .litellm_import import load
from .switch import refuse_if_forbidden


class _Zero(int):
    """No retries but ours. litellm 1.106 replaces a false number of retries of an embedding with its own."""

    def __bool__(self) -> bool:
        return True


class LiteLLMEmbedder:
    """Turns texts into vectors with ``model`` (in litellm's form, ``provider/name``); each call is charged to the run around it.

    Transient faults are tried again, and rate limits are waited for, as ``LiteLLMModel`` does. ``options`` go to litellm as they
    are (api_base, api_key, dimensions, ...). Raises ModelError.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout_seconds: float = 60.0,
        max_attempts: int = 3,
        max_wait_seconds: float = 600.0,
        **options: Any,
    ) -> None:
        if not model or not isinstance(model, str):
            raise ModelError(
                ErrorCode.invalid_configuration, f"{model!r} is not the name of a model.", "Give it as provider/name."
            )
        self.model = model
        self.timeout_seconds = timeout_seconds
        self.max_attempts = max_attempts
        self.max_wait_seconds = max_wait_seconds
        self.options = options

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in order."""
        refuse_if_forbidden(self.model)
        raw = attempts(
            partial(self._ask, list(texts)),
            self.model,
            self.options,
            max_attempts=self.max_attempts,
            max_wait_seconds=self.max_wait_seconds,
        )
        rows = [row if isinstance(row, dict) else row.model_dump() for row in raw.data or ()]
        vectors = [list(map(float, row["embedding"])) for row in sorted(rows, key=lambda row: row["index"])]
        if len(vectors) != len(texts):
            raise ModelError(
                AgentErrorCode.model_unavailable,
                f"{self.model} answered {len(texts)} texts with {len(vectors)} vectors.",
                "Use another model.",
            )
        return vectors

    @reraise_interrupts()
    def _ask(self, texts: list[str]) -> Any:
        options = {"num_retries": 0, "max_retries": _Zero(), **self.options}
        try:
            raw = load().embedding(model=self.model, input=texts, timeout=self.timeout_seconds, **options)
        except Exception:
            charge(Usage(calls=1, failed_calls=1))
            raise
        charge(self._usage(raw))
        return raw

    def _usage(self, raw: Any) -> Usage:
        cost = (getattr(raw, "_hidden_params", None) or {}).get("response_cost")
        return Usage(
            calls=1,
            input_tokens=int(getattr(raw.usage, "prompt_tokens", 0) or 0),
            cost_usd=float(cost or 0.0),
            unpriced_calls=0 if isinstance(cost, int | float) else 1,
        )
