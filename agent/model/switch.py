"""A switch that turns every call of a real model into an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agent.errors import AgentErrorCode

from .brain import ModelError

VARIABLE = "GAMEBOX_FORBID_REAL_MODELS"
_forbidden: ContextVar[bool] = ContextVar("gamebox_forbid_real_models", default=False)


@contextmanager
def forbid_real_models() -> Iterator[None]:
    """Have calls of real models raise ``real_calls_forbidden`` while the block runs.

    GAMEBOX_FORBID_REAL_MODELS=1 does the same for a whole process.
    """
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


def refuse_if_forbidden(model: str) -> None:
    """Raises ModelError ``real_calls_forbidden`` if real calls are switched off."""
    by_variable = os.environ.get(VARIABLE, "") not in {"", "0"}
    if by_variable or _forbidden.get():
        why = (
            f"{VARIABLE}={os.environ[VARIABLE]} is set" if by_variable else "this code runs within forbid_real_models()"
        )
        raise ModelError(
            AgentErrorCode.real_calls_forbidden,
            f"The model {model!r} was not called, because {why}.",
            f"Use a scripted or a replayed model, or unset {VARIABLE}.",
        )
