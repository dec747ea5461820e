"""Envelopes on the agent's side: failures of the loop itself, and text for a model."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from agent.errors import AgentErrorCode, error_code
from sandbox.envelope import Failure, Notice, Success, jsonable
from sandbox.errors import ErrorCode
from sandbox.text.excerpt import without_middle

from .images import without_images
from .result_budget import shown_chars

# The sandbox is gone: no later action of the run can be carried out.
LOST = frozenset({ErrorCode.sandbox_unavailable.value, ErrorCode.sandbox_closed.value})

Envelope = dict[str, Any]
# Words in the names of other agents' tools, which models know from their training; the first match is suggested.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "edit": ("replace", "patch", "insert"),
    "write": ("create", "save"),
    "read": ("cat", "view", "open"),
    "open": ("view",),
    "ipython": ("python",),
    "run": ("bash", "shell", "terminal", "execute", "command", "exec", "python"),
    "search": ("grep", "find"),
    "list": ("glob", "ls", "dir", "tree"),
    "make_dir": ("mkdir",),
    "move": ("rename", "mv"),
    "delete": ("rm", "remove"),
    "browse": ("fetch", "url"),
    "kill": ("stop",),
    "finish": ("submit", "done", "complete", "stop"),
    "processes": ("ps",),
}


def unknown_tool(name: object, known: Iterable[str]) -> Envelope:
    """Return the failure for a tool that does not exist. It names all tools, and the one that was meant if that is clear."""
    names = sorted(known)
    meant = _meant(str(name), names)
    listed = f"The tools are {', '.join(names)}." if names else "There are no tools."
    return Failure[Any](
        ErrorCode.unknown_tool,
        f"There is no tool {str(name)[:200]!r}.",
        f"Use {meant} for that." if meant else listed,
        next_tool=meant,
        retryable=True,
    ).to_dict()


def _meant(name: str, known: list[str]) -> str | None:
    """The tool whose name was misspelled, or is a word in ``name`` ("read_file"); None for any other."""
    near = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.75)  # below that, execute is like delete
    words = re.findall(r"[a-z]+", name[:200].lower())
    named = (word for word in words if word in known)
    elsewhere = (tool for word in words for tool, others in _ELSEWHERE.items() if word in others and tool in known)
    return next(iter(near), None) or next(named, None) or next(elsewhere, None)


def invalid_arguments(tool: str, message: str, schema: Mapping[str, Any]) -> Envelope:
    """Return the failure for arguments that do not fit, with the schema they should fit."""
    return Failure[Any](
        ErrorCode.invalid_arguments,
        f"{message.removesuffix('.')}.",
        f"Correct that and call {tool} again.",
        next_tool=tool,
        schema=schema,
    ).to_dict()


def unparsable(message: str, hint: str) -> Envelope:
    """Return the failure for a reply that holds no action."""
    return Failure[Any](ErrorCode.unparsable_response, message, hint, retryable=True).to_dict()


def only_first_calls(count: int) -> Envelope:
    """The answer to each call of a reply after the first ``count``, which is how many are carried out."""
    first = "first call" if count == 1 else f"first {count} calls"
    again = "Send one call per reply" if count == 1 else "Send fewer calls per reply"
    return Failure[Any](
        ErrorCode.too_many_actions,
        f"Only the {first} of a reply {'is' if count == 1 else 'are'} carried out; this one was not.",
        f"{again}, and send this one again if you still need it.",
        retryable=True,
    ).to_dict()


def not_begun(tool: str) -> Envelope:
    """Return the failure for a call that was not begun when the run was cancelled."""
    return Failure[Any](
        ErrorCode.cancelled,
        f"The run was cancelled before {tool} was carried out.",
        f"Nothing was done: call {tool} again if it is still needed.",
    ).to_dict()


def not_ended(tool: str, failed: Sequence[str]) -> Envelope:
    """The answer to a call that would end the run, beside calls of the same reply that failed."""
    names = ", ".join(failed)
    return Failure[Any](
        AgentErrorCode.finish_refused,
        f"The run does not end: other calls of the same reply failed ({names}).",
        f"Read their answers first, then call {tool} again if that is still right.",
        next_tool=tool,
    ).to_dict()


def text_of(envelope: Mapping[str, Any], result_type: type[BaseModel] | None = None, tool: str = "") -> str:
    """Return the envelope as text for a model; ``result_type`` restores the wording of a typed result.

    The result takes about ``shown_chars(envelope)`` characters: this is where the budget of a result is applied. An envelope of a
    foreign environment that lacks our fields is shown as JSON. That the same ``tool`` is to be called again is not repeated.
    """
    chars = shown_chars(envelope)
    envelope = without_images(envelope)
    try:
        result = _typed(envelope.get("result"), result_type)
        notices = tuple(Notice(n["code"], n["message"], n.get("hint", "")) for n in envelope.get("notices", ()))
        if envelope["tool_executed"] is True:
            return Success(result, notices=notices).to_text(chars)
        return Failure(
            error_code(envelope["code"]),
            without_middle(envelope["error"], chars),
            envelope.get("hint", ""),
            effects=envelope.get("effects", "none"),
            result=result,
            notices=notices,
            next_tool=next_tool if (next_tool := envelope.get("next_tool")) != tool else None,
        ).to_text(chars)
    except (KeyError, TypeError, ValueError):
        return without_middle(json.dumps(jsonable(envelope), ensure_ascii=False, sort_keys=True), chars)


def _typed(result: Any, result_type: type[BaseModel] | None) -> Any:
    if result_type is None or not isinstance(result, Mapping):
        return result
    try:
        return result_type.model_validate(dict(result))
    except ValidationError:
        return result
