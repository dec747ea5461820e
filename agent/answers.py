"""Answers as text for whoever does not have the action at hand: readers of the log and of exports."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.envelope import Notice, Success
from sandbox.operations import OPERATIONS
from sandbox.text.plain_text import overwrites

from .envelopes import text_of

OVERWRITTEN = "(The program has overwritten or erased parts of this output; gamebox runs show RUN --json has them.)"
log = logging.getLogger(__name__)


def worded(tool: str | None, envelope: Mapping[str, Any]) -> str:
    """The envelope as text, in the words of the operation where the action is called like one."""
    kind = OPERATIONS.get(tool or "")
    return text_of(envelope, None if kind is None else kind.result, tool or "")


def own_words(action: Any, envelope: Mapping[str, Any]) -> str | None:
    """The envelope in the words of the action, for the log; None where ``worded`` says the same, or it has no words."""
    show = getattr(action, "show", None)
    if show is None:
        return None
    try:
        text = show(envelope)
    except Exception:
        log.warning("an action could not word its answer", exc_info=True)
        return None
    return text if isinstance(text, str) and text != worded(getattr(action, "name", None), envelope) else None


def with_mark(text: str, envelope: Mapping[str, Any]) -> str:
    """The answer ``text`` for a person: with a line that says so if parts of the output were overwritten and are not in it."""
    result = envelope.get("result")
    values = result.values() if isinstance(result, Mapping) else (result,)
    hidden = any(isinstance(value, str) and overwrites(value) for value in values)
    return f"{text}\n{OVERWRITTEN}" if hidden else text


def with_further(words: str, envelope: Mapping[str, Any], known: Sequence[Any]) -> str:
    """``words`` with the notices of ``envelope`` that were added after they were made; ``known`` are those of before."""
    given = envelope.get("notices")
    new = [n for n in given if n not in known] if isinstance(given, list | tuple) else []
    try:
        return Success(words, notices=tuple(Notice(n["code"], n["message"], n.get("hint", "")) for n in new)).to_text()
    except (KeyError, TypeError, AttributeError):  # of a log that others wrote
        return words
