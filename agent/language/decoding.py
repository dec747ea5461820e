"""Reading JSON from what a model wrote: a real decoder first, repair last, and never a guess about text that was cut
off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent.model.response import Response
from agent.status import END_TOOL, LanguageError
from sandbox.envelope import Notice

from .fences import with_fences

# Each "{" of a text is tried as the start of an object; beyond this many the text is no reply but data.
MAX_STARTS = 2000
# Deeper nesting serves no tool and can exhaust a recursive decoder.
MAX_DEPTH = 100

REPAIRED = Notice(
    "reply_repaired",
    "The JSON of your reply was malformed and was repaired before use.",
    "Check that what was done is what you meant.",
)
MANY_ACTIONS = Notice(
    "too_many_actions",
    "Your reply held several actions; only the first was carried out.",
    "Send one action in a reply.",
)
CALL_HINT = f"Call one of the tools; when the task is done, call {END_TOOL}."
CUT_HINT = "Make the reply shorter: write long files in several steps."


@dataclass(frozen=True, slots=True)
class Invocation:
    """A tool, its arguments as the model gave them (of any type), and what the model should be told."""

    tool: str
    args: Any
    notices: tuple[Notice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """``{"tool", "args"}`` and, where there are any, ``notices``."""
        data: dict[str, Any] = {"tool": self.tool, "args": self.args}
        if self.notices:
            data["notices"] = [n.to_dict() for n in self.notices]
        return data


def find_invocation(text: str, cut: bool = False) -> Invocation | None:
    """The first ``{"tool": ...}`` object in ``text``, or None. Raises LanguageError for one that is malformed beyond
    repair.
    """
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
    """Where that object stands in ``text``, with the lines that fence it; None where there is none."""
    for start, end, value in _found_in(text):
        if isinstance(value.get("tool"), str):
            return with_fences(text, start, end)
    start = text.find("{")
    return None if start < 0 or '"tool"' not in text else with_fences(text, start, len(text))


def invocation_of_calls(reply: Response) -> Invocation:
    """The first call of a reply. Raises LanguageError for arguments that cannot be read."""
    call = reply.tool_calls[0]
    if not call.name:
        raise LanguageError("The call names no tool.", CALL_HINT)
    args, notices = decoded_arguments(call.arguments, reply.cut)
    return Invocation(call.name, {} if args is None else args, notices)


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in ``text``, outermost ones, in order."""
    return (value for _, _, value in _found_in(text))


def _found_in(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The same, each with where it begins and ends."""
    position = tries = 0
    while tries < MAX_STARTS and (position := text.find("{", position)) >= 0:
        tries += 1
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        start, position = position, end
        if isinstance(value, dict):
            yield start, end, value


def decoded_arguments(text: str, cut: bool) -> tuple[Any, tuple[Notice, ...]]:
    """The arguments of a native call, with the notice that they were repaired. Raises LanguageError."""
    try:
        return checked(_DECODER.decode(text.strip() or "{}")), ()
    except (ValueError, RecursionError):
        return checked(repaired(text, cut)), (REPAIRED,)


def repaired(text: str, cut: bool) -> Any:
    """What json-repair makes of ``text``. Raises LanguageError for text that was cut off: the rest of it would be
    lost silently.
    """
    stripped = text.rstrip().removesuffix("```").rstrip()
    if cut or not stripped.endswith(("}", "]", ",")):
        raise LanguageError("The JSON of the reply ends in the middle.", CUT_HINT)
    from json_repair import repair_json

    try:
        return repair_json(stripped, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError, IndexError, TypeError) as error:
        raise LanguageError("The JSON of the reply is malformed.", "Send it again as valid JSON.") from error


def decoded_value(text: str) -> Any:
    """The JSON value that ``text`` is. Raises ValueError where it is none."""
    try:
        return _DECODER.decode(text.strip())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def checked(value: Any) -> Any:
    """``value`` if it can be written as JSON in UTF-8. Raises LanguageError otherwise."""
    try:
        if _depth(value) > MAX_DEPTH:
            raise LanguageError(f"The arguments are nested deeper than {MAX_DEPTH} levels.", "Send a flatter object.")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise LanguageError(
            "The arguments hold half of a surrogate pair, which is no text.", "Send valid Unicode."
        ) from error
    except ValueError as error:
        raise LanguageError("The arguments hold a number that JSON does not have.", "Send valid JSON.") from error
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
