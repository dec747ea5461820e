"""Answers as text for readers of the log and of exports, who do not have the action."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.envelopes import text_of
from sandbox.envelope import Notice, Success
from sandbox.operations import OPERATIONS
from sandbox.text.plain_text import overwrites

OVERWRITTEN = "(The program has overwritten or erased parts of this output; gamebox runs show RUN --json has them.)"
log = logging.getLogger(__name__)


def worded(tool: str | None, envelope: Mapping[str, Any]) -> str:
    """Return the envelope as text, as the operation of that name shows it, if there is one."""
    kind = OPERATIONS.get(tool or "")
    return text_of(envelope, None if kind is None else kind.result, tool or "")


def own_words(action: Any, envelope: Mapping[str, Any]) -> str | None:
    """Return the envelope in the action's own words, for the log; None if it has none, or ``worded`` returns the same."""
    show = getattr(action, "show", None)
    if show is None:
        return None
    try:
        text = show(envelope)
    except Exception:
        log.warning("an action could not show its answer", exc_info=True)
        return None
    return text if isinstance(text, str) and text != worded(getattr(action, "name", None), envelope) else None


def with_mark(text: str, envelope: Mapping[str, Any]) -> str:
    """Return the answer for a person: a line says so if the output overwrote parts of itself, which are not in the text."""
    result = envelope.get("result")
    values = result.values() if isinstance(result, Mapping) else (result,)
    hidden = any(isinstance(value, str) and overwrites(value) for value in values)
    return f"{text}\n{OVERWRITTEN}" if hidden else text


def with_further(words: str, envelope: Mapping[str, Any], known: Sequence[Any]) -> str:
    """Return ``words`` with the notices of ``envelope`` that are not in ``known``, the ones that the words have already."""
    given = envelope.get("notices")
    new = [n for n in given if n not in known] if isinstance(given, list | tuple) else []
    try:
        return Success(words, notices=tuple(Notice(n["code"], n["message"], n.get("hint", "")) for n in new)).to_text()
    except (KeyError, TypeError, AttributeError):  # of a log that others wrote
        return words
