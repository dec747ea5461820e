"""Reads JSON in what a model wrote: with a real decoder first, by repair last, and never by guessing the end of truncated text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.core.status import END_TOOL, LanguageError
from agent.model.response import Response
from sandbox.envelope import Notice
from sandbox.frozen import dataclass

from .fences import with_fences

# Each "{" of a text is tried as the start of an object; beyond this many the text is no reply but data.
MAX_STARTS = 2000
# Read in vain, from all of them together: an object that does not end is read to the end of the text from each "{" in it.
MAX_READ_IN_VAIN = 2_000_000
# A repair can take time that grows with the square of the text, which may be hostile.
MAX_REPAIRED_CHARS = 100_000
# Deeper nesting serves no tool and can exhaust a recursive decoder.
MAX_DEPTH = 100

REPAIRED = Notice(
    "reply_repaired",
    "The JSON of your reply was malformed and was repaired before use.",
    "Check that what was done is what you meant.",
)
MANY_ACTIONS = Notice(
    "too_many_actions",
    "Your reply contained several actions; only the first was carried out.",
    "Send one action per reply.",
)
CALL_HINT = f"Call one of the tools; when the task is done, call {END_TOOL}."
CUT_HINT = "Make the reply shorter: write long files in several steps."


@dataclass(frozen=True, slots=True)
class Invocation:
    """A tool, its arguments as the model gave them (of any type), and notices for the model."""

    tool: str
    args: Any
    notices: tuple[Notice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"tool", "args"}``, and ``notices`` if there are any."""
        data: dict[str, Any] = {"tool": self.tool, "args": self.args}
        if self.notices:
            data["notices"] = [n.to_dict() for n in self.notices]
        return data


def find_invocation(text: str, cut: bool = False) -> Invocation | None:
    """Return the first ``{"tool": ...}`` object in ``text``, or None. Raises LanguageError for one beyond repair."""
    objects = [o for o in objects_in(text) if isinstance(o.get("tool"), str)]
    if objects:
        notices = (MANY_ACTIONS,) if len(objects) > 1 else ()
        return Invocation(objects[0]["tool"], checked(objects[0].get("args", {})), notices)
    start = text.find("{")
    if start < 0 or '"tool"' not in text:
        return None
    value = repaired(text[start:], cut)
    if isinstance(value, dict) and isinstance(value.get("tool"), str):
        return Invocation(value["tool"], checked(value.get("args", {})), (REPAIRED,))
    return None


def span_of_invocation(text: str) -> tuple[int, int] | None:
    """Return where that object begins and ends, with the lines that fence it; None if there is none."""
    for start, end, value in _found_in(text):
        if isinstance(value.get("tool"), str):
            return with_fences(text, start, end)
    start = text.find("{")
    return None if start < 0 or '"tool"' not in text else with_fences(text, start, len(text))


def invocation_of_calls(reply: Response) -> Invocation:
    """Return the first call of a reply. Raises LanguageError for arguments that cannot be parsed."""
    call = reply.tool_calls[0]
    if not call.name:
        raise LanguageError("The call names no tool.", CALL_HINT)
    args, notices = decoded_arguments(call.arguments, reply.cut)
    return Invocation(call.name, {} if args is None else args, notices)


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Return the outermost JSON objects in ``text``, in order."""
    return (value for _, _, value in _found_in(text))


def _found_in(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects, each with its begin and end."""
    position = tries = in_vain = 0
    while tries < MAX_STARTS and in_vain < MAX_READ_IN_VAIN and (position := text.find("{", position)) >= 0:
        tries += 1
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            in_vain += max(getattr(error, "pos", position) - position, 0)
            position += 1
            continue
        start, position = position, end
        if isinstance(value, dict):
            yield start, end, value


def decoded_arguments(text: str, cut: bool) -> tuple[Any, tuple[Notice, ...]]:
    """Return the arguments of a native call, with a notice if they were repaired. Raises LanguageError."""
    try:
        return checked(_DECODER.decode(text.strip() or "{}")), ()
    except (ValueError, RecursionError):
        return checked(repaired(text, cut)), (REPAIRED,)


def repaired(text: str, cut: bool) -> Any:
    """Return what json-repair makes of ``text``. Raises LanguageError for truncated text: its end would be lost silently."""
    stripped = text.rstrip().removesuffix("```").rstrip()
    if cut or not stripped.endswith(("}", "]", ",")):
        raise LanguageError("The JSON of the reply ends in the middle.", CUT_HINT)
    if len(stripped) > MAX_REPAIRED_CHARS:
        raise LanguageError("The JSON of the reply is malformed.", "Send it again as valid JSON.")
    from json_repair import repair_json

    try:
        return repair_json(stripped, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError, IndexError, TypeError) as error:
        raise LanguageError("The JSON of the reply is malformed.", "Send it again as valid JSON.") from error


def decoded_value(text: str) -> Any:
    """Return the JSON value of ``text``. Raises ValueError for text that is not JSON."""
    try:
        return _DECODER.decode(text.strip())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def checked(value: Any) -> Any:
    """Return ``value`` if it can be written as JSON in UTF-8. Raises LanguageError otherwise."""
    try:
        if _depth(value) > MAX_DEPTH:
            raise LanguageError(f"The arguments are nested deeper than {MAX_DEPTH} levels.", "Send a flatter object.")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise LanguageError(
            "The arguments contain half of a surrogate pair, which is not valid text.", "Send valid Unicode."
        ) from error
    except ValueError as error:
        raise LanguageError("The arguments contain a number that JSON cannot represent.", "Send valid JSON.") from error
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return depth


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# strict=False takes raw line breaks inside strings: models write them, and their meaning is clear.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
