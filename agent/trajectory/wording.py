"""What steps say, as text: for exports that a person or a model reads."""

from __future__ import annotations

from collections.abc import Mapping

from agent.envelopes import text_of
from sandbox.operations import OPERATIONS
from sandbox.plain_text import plain

from .recorded import RecordedStep


def answer_text(step: RecordedStep) -> str:
    """The envelope in the words that a model is shown, without escape sequences."""
    if step.envelope is None:
        return "(the run was cut off before it was answered)"
    kind = OPERATIONS.get(step.tool or "")
    return plain(text_of(step.envelope, None if kind is None else kind.result))


def exit_code(step: RecordedStep) -> int | None:
    """The exit code of a command; None for what is none, or was ended by a signal."""
    code = step.result.get("exit_code")
    return code if isinstance(code, int) else None


def summary(result: object) -> str:
    """What a run handed in, as text."""
    if isinstance(result, Mapping) and isinstance(result.get("summary"), str):
        return str(result["summary"])
    return "" if result is None else str(result)
