"""Hints for a model that has only the tools of this server: they name no other tool, and say what only its user can do."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Any

from sandbox.envelope import Envelope, Failure

# Steps for callers of the HTTP API, of the library, and of the command.
_OF_OTHERS = re.compile(
    r"\b(?:GET|POST|PUT|PATCH|DELETE) /|\b(?:Docker|Remote|Local)Environment\b|\bLimits\(|\benv\.\w+\(|`gamebox |\bDOCKER_HOST\b"
)
# What does the work of a tool that is not offered, where hints name it.
_INSTEAD = {
    "processes": (
        (re.compile(r"\b([Ww]ith) processes\b"), r"\1 run and ps"),
        (re.compile(r"\bsee processes\b"), "see run and ps"),
        (re.compile(r"\bprocesses shows\b"), "ps, with run, shows"),
        (re.compile(r"\blogs, processes or wait_for\b"), "logs or wait_for"),
    ),
    "end_session": ((re.compile(r"\bend one with end_session\b"), "end one by running exit in it"),),
}


def for_tools(answer: Envelope[Any], offered: Container[str]) -> Envelope[Any]:
    """Return an answer whose hints a model can follow that has the ``offered`` tools."""
    notices = tuple(replace(each, hint=hint_for_tools(each.hint, offered)) for each in answer.notices)
    if not isinstance(answer, Failure):
        return replace(answer, notices=notices)
    tool = answer.next_tool if answer.next_tool is not None and answer.next_tool in offered else None
    hint = hint_for_tools(answer.hint, offered, retryable=answer.retryable)
    return replace(answer, hint=hint, next_tool=tool, notices=notices)


def hint_for_tools(hint: str, offered: Container[str] = (), *, retryable: bool = False) -> str:
    """Return a hint in words for a model: what only others can do, it is to tell the user."""
    text = str(hint)
    for tool, changes in _INSTEAD.items():
        if tool not in offered and "run" in offered:
            for pattern, words in changes:
                text = pattern.sub(words, text)
    if _OF_OTHERS.search(text) is None or text.startswith("Tell the user"):
        return text
    return f"{'Do it again in a moment; if that does not help, tell' if retryable else 'Tell'} the user: {text}"
