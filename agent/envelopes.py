"""Envelopes on the agent's side: the failures the loop itself words, text for a model, and a bound on what memory
keeps.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from sandbox.envelope import Failure, Notice, Success, jsonable
from sandbox.errors import ErrorCode

# About 50,000 tokens: more would fill the context of most models with one result.
MAX_RESULT_CHARS = 200_000
# The sandbox is gone: no later action of the run can be carried out.
LOST = frozenset({ErrorCode.sandbox_unavailable.value, ErrorCode.sandbox_closed.value})

Envelope = dict[str, Any]


def unknown_tool(name: object, known: Iterable[str]) -> Envelope:
    """There is no such tool: names the nearest one as the next, and all there are."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    listing = ", ".join(names) or "none"
    return Failure[Any](
        ErrorCode.unknown_tool,
        f"There is no tool {str(name)[:200]!r}.",
        f"Use one of: {listing}.",
        next_tool=near[0] if near else None,
        retryable=True,
    ).to_dict()


def invalid_arguments(tool: str, message: str, schema: Mapping[str, Any]) -> Envelope:
    """The arguments do not fit: carries the schema they should fit."""
    return Failure[Any](
        ErrorCode.invalid_arguments,
        f"Wrong arguments for {tool}: {message}",
        f"Call {tool} again with arguments that fit its schema.",
        next_tool=tool,
        schema=schema,
    ).to_dict()


def unparsable(message: str, hint: str) -> Envelope:
    """No action could be read from the model's reply."""
    return Failure[Any](ErrorCode.unparsable_response, message, hint, retryable=True).to_dict()


def only_first_call() -> Envelope:
    """For each call of a reply after its first."""
    return Failure[Any](
        ErrorCode.too_many_actions,
        "Only the first call of a reply is carried out; this one was not.",
        "Send one call in a reply, and this one again if you still want it.",
        retryable=True,
    ).to_dict()


def bounded(envelope: Mapping[str, Any]) -> Envelope:
    """The envelope as JSON-ready data whose result has at most 200,000 characters; a notice says when it was cut."""
    data: Envelope = jsonable(envelope)
    text = json.dumps(data.get("result"), ensure_ascii=False)
    if len(text) <= MAX_RESULT_CHARS:
        return data
    half = MAX_RESULT_CHARS // 2
    notice = Notice(
        "output_cut",
        f"The result has {len(text)} characters; its first and last {half} are shown.",
        "Ask for a smaller part of it.",
    )
    cut = len(text) - 2 * half
    data["result"] = f"{text[:half]}\n[… {cut} characters cut …]\n{text[-half:]}"
    data["notices"] = [*data.get("notices", []), notice.to_dict()]
    return data


def text_of(envelope: Mapping[str, Any], result_type: type[BaseModel] | None = None) -> str:
    """The envelope as text for a model; ``result_type`` brings the wording of a typed result back.

    An envelope of a foreign environment that lacks our fields is shown as JSON.
    """
    try:
        result = _typed(envelope.get("result"), result_type)
        notices = tuple(Notice(n["code"], n["message"], n.get("hint", "")) for n in envelope.get("notices", ()))
        if envelope["tool_executed"] is True:
            return Success(result, notices=notices).to_text()
        return Failure(
            ErrorCode(envelope["code"]),
            envelope["error"],
            envelope.get("hint", ""),
            effects=envelope.get("effects", "none"),
            result=result,
            notices=notices,
            schema=envelope.get("schema"),
        ).to_text()
    except (KeyError, TypeError, ValueError):
        return json.dumps(jsonable(envelope), ensure_ascii=False, sort_keys=True)


def _typed(result: Any, result_type: type[BaseModel] | None) -> Any:
    if result_type is None or not isinstance(result, Mapping):
        return result
    try:
        return result_type.model_validate(dict(result))
    except ValidationError:
        return result
