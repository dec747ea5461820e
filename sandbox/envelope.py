"""The envelope: the shape of the answer to every action.

``Success`` says that the action was carried out (a command that exits 1 was carried out). ``Failure`` says that it was not, or not
completely, with a code, a hint and what is known so far. ``to_dict()`` is the envelope as JSON, ``to_text()`` is what a model
reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePath
from time import time_ns
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar
from uuid import UUID

from sandbox.frozen import dataclass
from sandbox.text.excerpt import SHOWN_CHARS, without_middle

from .errors import ErrorCode, SandboxError, SandboxUnavailableError

T = TypeVar("T")
REPR_CHARS = 300
_WITH_JSON_FORM = (date, time, timedelta, Decimal, Enum, PurePath, UUID)
Effects = Literal["none", "partial", "unknown"]


# The second for which ``now`` was called last, and what is written of it before and behind the milliseconds: to find the offset
# of the zone takes longer than all the rest.
_last_second: tuple[int, str, str] = -1, "", ""


def now() -> str:
    """Return the present time as ISO 8601 with milliseconds and a zone offset."""
    global _last_second
    at = time_ns() // 10**6
    second, date_and_time, offset = _last_second
    if at // 1000 != second:
        second = at // 1000
        text = datetime.fromtimestamp(second, UTC).astimezone().isoformat()
        date_and_time, offset = text[:19], text[19:]
        _last_second = second, date_and_time, offset
    return f"{date_and_time}.{at % 1000:03d}{offset}"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the model should know although the action succeeded. ``code`` is snake_case, ``hint`` may be empty."""

    code: str
    message: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True)  # no slots: with them Success[Any](...) raises TypeError in Python 3.11
class Success(Generic[T]):
    """The action was carried out; ``result`` is its typed result. Unlike a failure, a success is true."""

    result: T
    timestamp: str = field(default_factory=now)
    duration_ms: float = 0.0
    notices: tuple[Notice, ...] = ()

    @property
    def ok(self) -> Literal[True]:
        return True

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        codes = f", notices: {', '.join(notice.code for notice in self.notices)}" if self.notices else ""
        return f"Success({_short(repr(self.result))}{codes})"

    if not TYPE_CHECKING:  # a type checker is to find unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError that says where the fields of the result are."""
            raise _no_attribute(self, name)

    def unwrap(self) -> T:
        """Return the result."""
        return self.result

    def to_dict(self) -> dict[str, Any]:
        """Return the success envelope as JSON-ready data."""
        return {
            "tool_executed": True,
            "result": jsonable(self.result),
            "timestamp": self.timestamp,
            "duration_ms": round(self.duration_ms, 3),
            "notices": [n.to_dict() for n in self.notices],
        }

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the envelope as text for a model: the result in about ``chars`` characters, then the notices."""
        text = _text_of(self.result, chars)
        return "\n".join([text, *_notice_lines(self, text)]).strip("\n")


@dataclass(frozen=True)  # no slots: with them Failure[Any](...) raises TypeError in Python 3.11
class Failure(Generic[T]):
    """The action was not carried out, or not completely; ``effects`` says whether anything was changed.

    ``code`` is an ErrorCode, or a member of another StrEnum whose values are different. ``retryable`` is true only if the same call
    can help and nothing was half done. ``schema``, the parameter schema of the tool, comes with ``invalid_arguments``; ``reason``
    comes with ``sandbox_unavailable``: see ``SandboxUnavailableError``.
    """

    code: StrEnum
    error: str
    hint: str = ""
    next_tool: str | None = None
    retryable: bool = False
    effects: Effects = "none"
    result: T | None = None
    timestamp: str = field(default_factory=now)
    duration_ms: float = 0.0
    notices: tuple[Notice, ...] = ()
    schema: Mapping[str, Any] | None = None
    reason: str | None = None

    @property
    def ok(self) -> Literal[False]:
        return False

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        hint = f", hint: {_short(self.hint)}" if self.hint else ""
        return f"Failure({self.code.value}: {_short(self.error)}{hint})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError that says where the fields of the result are."""
            raise _no_attribute(self, name)

    @classmethod
    def of(cls, error: SandboxError, **fields: Any) -> Failure[T]:
        """Return the failure with the fields of ``error``; ``fields`` override them."""
        known: dict[str, Any] = {
            "next_tool": error.next_tool,
            "retryable": error.retryable,
            "effects": error.effects,
            "result": error.result,
            "reason": error.reason if isinstance(error, SandboxUnavailableError) else None,
        }
        return cls(code=error.code, error=error.message, hint=error.hint, **(known | fields))

    def unwrap(self) -> NoReturn:
        """Raise SandboxError with the same fields, or SandboxUnavailableError if there is a ``reason``."""
        if self.reason is not None:
            gone = SandboxUnavailableError(self.reason, self.error, self.hint)
            gone.next_tool, gone.retryable = self.next_tool, self.retryable
            gone.effects, gone.result = self.effects, self.result
            raise gone
        raise SandboxError(
            self.code,
            self.error,
            self.hint,
            next_tool=self.next_tool,
            retryable=self.retryable,
            effects=self.effects,
            result=self.result,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the failure envelope as JSON-ready data."""
        data: dict[str, Any] = {
            "tool_executed": False,
            "error": self.error,
            "code": self.code.value,
            "hint": self.hint,
            "next_tool": self.next_tool,
            "retryable": self.retryable,
            "effects": self.effects,
            "result": None if self.result is None else jsonable(self.result),
            "timestamp": self.timestamp,
            "duration_ms": round(self.duration_ms, 3),
            "notices": [n.to_dict() for n in self.notices],
        }
        if self.schema is not None:
            data["schema"] = dict(self.schema)
        if self.reason is not None:
            data["reason"] = self.reason
        return data

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the envelope as text for a model: the error, the hint, then what is known so far in about ``chars`` characters.

        ``schema`` is left out: the model has the schemas of its tools, and the error names what is wrong.
        """
        lines = [f"ERROR {self.code.value}: {self.error}"]
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        if self.next_tool is not None and self.next_tool not in _WORDS.findall(self.hint.lower()):
            lines.append(f"NEXT TOOL: {self.next_tool}")
        ended = (
            self.code is ErrorCode.invalid_result and self.result is not None
        )  # the tool did all of it, as the hint says
        if (more := _EFFECTS[self.effects]) and self.code not in _EFFECTS_IN_THE_MESSAGE and not ended:
            lines.append(more)
        text = "" if self.result is None else _text_of(self.result, chars)
        if ended:
            text = f"The answer of the tool, as it came: {text}"
        return "\n".join([*lines, *([text] if text else []), *_notice_lines(self, text)]).strip("\n")


Envelope = Success[T] | Failure[T]

_EFFECTS: dict[Effects, str] = {
    "none": "",
    "partial": "EFFECTS: A part of it was done.",
    "unknown": "EFFECTS: Some of it may have been done: look before you do it again.",
}
# A command that was killed has obviously done something; the messages or hints of the others say it.
_EFFECTS_IN_THE_MESSAGE = frozenset(
    {ErrorCode.timeout, ErrorCode.cpu_limit, ErrorCode.cancelled, "effects_unknown", "delegate_not_finished"}
)
_WORDS = re.compile(r"\w+")
# The text of a result already says where it was cut, and how to see the rest.
_IN_THE_RESULT = frozenset({"output_cut"})


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON-ready data.

    Models and dataclasses become objects, dates, paths, enums and the like what pydantic writes for them; bytes are decoded with
    replacement, and any other object becomes its repr.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > 50:
        return repr(value)[:1000]
    if hasattr(value, "model_dump"):
        return jsonable(value.model_dump(), depth + 1)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(k): jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v, depth + 1) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: jsonable(getattr(value, each.name, None), depth + 1) for each in fields(value)}
    if isinstance(value, _WITH_JSON_FORM):
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)
    return repr(value)


def _no_attribute(envelope: Success[Any] | Failure[Any], name: str) -> AttributeError:
    """Return the error for an attribute that an envelope does not have; it points to the result if that has it."""
    kind = type(envelope).__name__
    message = f"{kind!r} object has no attribute {name!r}"
    result = envelope.__dict__.get("result")  # missing while it is unpickled
    if not name.startswith("_") and hasattr(result, name):
        message += f". Use .result.{name}, or .unwrap().{name}, which raises SandboxError for a failure"
    elif not name.startswith("_") and kind == "Failure":
        message += f". Use .unwrap().{name}, which raises SandboxError for a failure such as this one: {envelope!r}"
    return AttributeError(message, name=name, obj=envelope)


def _short(text: str) -> str:
    return text if len(text) <= REPR_CHARS else f"{text[: REPR_CHARS - 1]}…"


def _text_of(result: Any, chars: int) -> str:
    """Return the result in its own words if it has any. What is cut is cut only once, in the middle or at the end."""
    if getattr(type(result), "cuts_itself", False):
        return str(result.to_text(chars))
    if hasattr(result, "to_text"):
        return without_middle(str(result.to_text()), chars)
    if isinstance(result, Mapping) and "output" in result:  # both streams are in it
        result = {name: value for name, value in result.items() if name not in ("stdout", "stderr")}
    return without_middle(
        result if isinstance(result, str) else json.dumps(jsonable(result), ensure_ascii=False), chars
    )


def _notice_lines(envelope: Success[Any] | Failure[Any], text: str) -> list[str]:
    """Return a line for each notice, except for those that ``text``, the result as shown, already has."""
    says_itself = getattr(type(envelope.result), "cuts_itself", False) or "left out here" in text
    ident = getattr(envelope.result, "id", None)
    own_end = f"The command {ident} " if ident and not getattr(envelope.result, "running", True) else None
    shown = [
        n
        for n in envelope.notices
        if not (says_itself and n.code in _IN_THE_RESULT)
        and not (n.code == "command_ended" and own_end and n.message.startswith(own_end))
    ]
    return [f"NOTICE {n.code}: {n.message}{' ' + n.hint if n.hint else ''}" for n in shown]
