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
from sandbox.text.excerpt import SHOWN_CHARS

from .errors import error_code

# About 25,000 tokens: more would fill much of most models' context with one text.
MAX_TEXT_CHARS = 100_000
# A result of several texts, or of very many small values.
MAX_RESULT_CHARS = 400_000
# The sandbox is gone: no later action of the run can be carried out.
LOST = frozenset({ErrorCode.sandbox_unavailable.value, ErrorCode.sandbox_closed.value})

Envelope = dict[str, Any]
# What the tools of other agents are called, by words in their names: models know those from their training.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "replace": ("edit",), "patch": ("edit",), "insert": ("edit",), "create": ("write",), "save": ("write",),
    "cat": ("read",), "view": ("read", "open"), "open": ("read",), "bash": ("run",), "shell": ("run",), "terminal": ("run",),
    "execute": ("run",), "command": ("run",), "exec": ("run",), "python": ("ipython", "run"), "grep": ("search",),
    "find": ("search",), "glob": ("list",), "ls": ("list",), "dir": ("list",), "tree": ("list",), "mkdir": ("make_dir",),
    "rename": ("move",), "mv": ("move",), "rm": ("delete",), "remove": ("delete",), "fetch": ("browse",), "url": ("browse",),
    "submit": ("finish",), "done": ("finish",), "complete": ("finish",), "stop": ("kill", "finish"), "ps": ("processes",),
}  # fmt: skip


def unknown_tool(name: object, known: Iterable[str]) -> Envelope:
    """There is no such tool: names all there are, and as the next one that which was meant, if that can be told."""
    names = sorted(known)
    meant = _meant(str(name), names)
    listed = f"There are {', '.join(names)}." if names else "There are no tools."
    return Failure[Any](
        ErrorCode.unknown_tool,
        f"There is no tool {str(name)[:200]!r}.",
        f"Use {meant} for that." if meant else listed,
        next_tool=meant,
        retryable=True,
    ).to_dict()


def _meant(name: str, known: list[str]) -> str | None:
    """The tool whose name was misspelt, or stands in ``name`` as a word of its own ("read_file"); None for any other."""
    near = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.75)  # below that, execute is like delete
    words = re.findall(r"[a-z]+", name[:200].lower())
    named = (word for word in words if word in known)
    elsewhere = (tool for word in words for tool in _ELSEWHERE.get(word, ()) if tool in known)
    return next(iter(near), None) or next(named, None) or next(elsewhere, None)


def invalid_arguments(tool: str, message: str, schema: Mapping[str, Any]) -> Envelope:
    """The arguments do not fit: carries the schema they should fit."""
    return Failure[Any](
        ErrorCode.invalid_arguments,
        f"{message.removesuffix('.')}.",
        f"Correct that and call {tool} again.",
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

    Texts inside the result are cut to ``text_chars`` characters, head and tail; of a result that still has more than
    ``result_chars`` in all the lists are cut at their ends, and what is still too much becomes text and is cut as a whole.
    """
    data: Envelope = jsonable(envelope)
    cut: list[int] = []
    result = _cut_texts(data.get("result"), text_chars, cut)
    whole = json.dumps(result, ensure_ascii=False)
    if len(whole) > result_chars:
        result = _with_shorter_lists(result, result_chars / len(whole))
        shorter = json.dumps(result, ensure_ascii=False)
        cut.append(len(whole) - len(shorter))
        if len(shorter) > result_chars:
            result = _cut(shorter, result_chars, cut)
    if not cut:
        return data
    notice = Notice(
        "output_cut",
        f"The result was cut in the middle: {sum(cut)} characters of it are not shown.",
        "Ask for a smaller part of it.",
    )
    return {**data, "result": result, "notices": [*data.get("notices", []), notice.to_dict()]}


def _with_shorter_lists(result: Any, share: float) -> Any:
    """A result of which the lists keep about ``share`` of their items; it says so itself where it has a field for that."""
    if not isinstance(result, dict):
        return result
    lists = [name for name, value in result.items() if isinstance(value, list)]
    kept = {name: result[name][: int(len(result[name]) * share * 0.8)] for name in lists}
    return {**result, **kept, **({"truncated": True} if "truncated" in result else {})}


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


def text_of(envelope: Mapping[str, Any], result_type: type[BaseModel] | None = None, tool: str = "") -> str:
    """The envelope as text for a model; ``result_type`` brings the wording of a typed result back.

    The result takes about ``shown_chars`` characters if the envelope has that field: memories set it where there is less room, and
    tools whose answers are to be shown whole where there is to be more. An envelope of a foreign environment that lacks our
    fields is shown as JSON. That the same ``tool`` is to be called again is not repeated.
    """
    chars = shown_chars(envelope)
    try:
        result = _typed(envelope.get("result"), result_type)
        notices = tuple(Notice(n["code"], n["message"], n.get("hint", "")) for n in envelope.get("notices", ()))
        if envelope["tool_executed"] is True:
            return Success(result, notices=notices).to_text(chars)
        return Failure(
            error_code(envelope["code"]),
            envelope["error"],
            envelope.get("hint", ""),
            effects=envelope.get("effects", "none"),
            result=result,
            notices=notices,
            next_tool=next_tool if (next_tool := envelope.get("next_tool")) != tool else None,
        ).to_text(chars)
    except (KeyError, TypeError, ValueError):
        return json.dumps(jsonable(envelope), ensure_ascii=False, sort_keys=True)


def shown_chars(envelope: Mapping[str, Any]) -> int:
    """How many characters of its result are shown."""
    chars = envelope.get("shown_chars")
    return chars if isinstance(chars, int) and chars > 0 else SHOWN_CHARS


def shown_size(envelope: Mapping[str, Any]) -> int:
    """About how many bytes the envelope takes in a prompt, at most; cheap, and without knowing the action it answers."""
    result = envelope.get("result")
    if isinstance(result, Mapping) and "output" in result:  # both streams are in it
        result = {name: value for name, value in result.items() if name not in ("stdout", "stderr")}
    around = {name: envelope[name] for name in ("error", "hint", "notices") if envelope.get(name)}
    most = shown_chars(envelope) * 6 // 5  # a line feed counts twice here, as a token of its own nearly does
    shown = _bytes(json.dumps(result, ensure_ascii=False, default=repr)[:most])
    return shown + _bytes(json.dumps(around, ensure_ascii=False, default=repr))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _typed(result: Any, result_type: type[BaseModel] | None) -> Any:
    if result_type is None or not isinstance(result, Mapping):
        return result
    try:
        return result_type.model_validate(dict(result))
    except ValidationError:
        return result
