"""Envelopes on the agent's side: the failures the loop itself words, text for a model, and a bound on what memory
keeps.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from sandbox.envelope import Failure, Notice, Success, jsonable
from sandbox.errors import ErrorCode

# About 25,000 tokens: more would fill much of most models' context with one text.
MAX_TEXT_CHARS = 100_000
# A result of several texts, or of very many small values.
MAX_RESULT_CHARS = 400_000
# The sandbox is gone: no later action of the run can be carried out.
LOST = frozenset({ErrorCode.sandbox_unavailable.value, ErrorCode.sandbox_closed.value})

Envelope = dict[str, Any]


def unknown_tool(name: object, known: Iterable[str]) -> Envelope:
    """There is no such tool: names all there are, and as the next one that which was meant, if that can be told."""
    names = sorted(known)
    listing = ", ".join(names) or "none"
    return Failure[Any](
        ErrorCode.unknown_tool,
        f"There is no tool {str(name)[:200]!r}.",
        f"Use one of: {listing}.",
        next_tool=_meant(str(name), names),
        retryable=True,
    ).to_dict()


def _meant(name: str, known: list[str]) -> str | None:
    """The tool whose name was misspelt, or stands in ``name`` as a word of its own ("read_file"); None for any other."""
    near = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.75)  # below that, execute is like delete
    words = re.findall(r"[a-z]+", name[:200].lower())
    return next(iter(near), None) or next((word for word in words if word in known), None)


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


def bounded(envelope: Mapping[str, Any], text_chars: int = MAX_TEXT_CHARS, result_chars: int = MAX_RESULT_CHARS) -> Envelope:
    """The envelope as JSON-ready data that a context can hold; a notice says when something was cut.

    Texts inside the result are cut to ``text_chars`` characters, head and tail; a result that still has more than ``result_chars``
    in all becomes text and is cut as a whole.
    """
    data: Envelope = jsonable(envelope)
    cut: list[int] = []
    result = _cut_texts(data.get("result"), text_chars, cut)
    whole = json.dumps(result, ensure_ascii=False)
    if len(whole) > result_chars:
        result = _cut(whole, result_chars, cut)
    if not cut:
        return data
    notice = Notice(
        "output_cut",
        f"The result was cut in the middle: {sum(cut)} characters of it are not shown.",
        "Ask for a smaller part of it.",
    )
    return {**data, "result": result, "notices": [*data.get("notices", []), notice.to_dict()]}


def cut_texts(value: Any, chars: int) -> Any:
    """JSON-ready data, its texts cut to ``chars`` characters, head and tail, with how many are left out."""
    return _cut_texts(value, chars, [])


def _cut_texts(value: Any, chars: int, cut: list[int]) -> Any:
    if isinstance(value, str):
        return _cut(value, chars, cut)
    if isinstance(value, dict):
        return {k: _cut_texts(v, chars, cut) for k, v in value.items()}
    return [_cut_texts(v, chars, cut) for v in value] if isinstance(value, list) else value


def _cut(text: str, limit: int, cut: list[int]) -> str:
    """Head and tail of ``text``; what was taken out is added to ``cut``."""
    if len(text) <= limit:
        return text
    half = limit // 2
    cut.append(len(text) - 2 * half)
    return f"{text[:half]}\n[… {cut[-1]} characters cut …]\n{text[-half:]}"


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
