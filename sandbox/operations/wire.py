"""Requests and envelopes as JSON: what the HTTP service and its clients exchange.

A text stands for bytes wherever it can. The bytes that a result has beside its texts (``stdout_bytes`` and the like) are part of
the envelope only for a client that asks for them: base64 in ``bytes``, by field, without those that are the UTF-8 of their text.
Such a client also gets, in ``hints``, what hints say to a person and to a program, where that is not what they say to a model.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

from sandbox.envelope import Envelope, Failure, Notice, Success
from sandbox.errors import ErrorCode
from sandbox.readers import Hint

from .base import Request
from .result import Result
from .state import (
    ChangesResult,
    CheckpointResult,
    CheckpointsResult,
    DeletedCheckpointResult,
    PatchResult,
    RollbackResult,
)

# The methods on the state of the files that are carried out over HTTP as operations are: with their arguments as the body.
STATE_METHODS: dict[str, type[Result]] = {
    "changes": ChangesResult,
    "mark": CheckpointResult,
    "checkpoint": CheckpointResult,
    "checkpoints": CheckpointsResult,
    "delete_checkpoint": DeletedCheckpointResult,
    "rollback": RollbackResult,
    "export_patch": PatchResult,
}


def request_data(request: Request) -> dict[str, Any]:
    """Return the arguments of a request that are not their defaults, for ``type(request).model_validate``; no request id."""
    given = request.model_dump(exclude_defaults=True, exclude={"request_id"})
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):  # as ``Run`` reads them again
        return value.decode("utf-8", "surrogateescape")
    return "unlimited" if isinstance(value, float) and math.isinf(value) else value


def envelope_data(envelope: Envelope[Any], *, with_bytes: bool = False) -> dict[str, Any]:
    """Return the envelope as JSON-ready data, for ``read_envelope``; ``with_bytes`` adds what its texts cannot say."""
    data = envelope.to_dict()
    return {**data, **beside_texts(envelope, data)} if with_bytes else data


def beside_texts(envelope: Envelope[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the texts of an envelope cannot say, as fields to be added to its data; mostly nothing."""
    more: dict[str, Any] = {}
    if isinstance(envelope.result, Result):
        pairs = ((name, getattr(envelope.result, name)) for name in _bytes_fields(type(envelope.result)))
        beside = {
            name: base64.b64encode(value).decode()
            for name, value in pairs
            if value is not None and value != _as_text(name, data["result"])
        }
        if beside:
            more["bytes"] = beside
    if words := _hints(envelope):
        more["hints"] = words
    return more


def _hints(envelope: Envelope[Any]) -> dict[str, dict[str, str]]:
    """Return the hints for other readers than a model, where they have their own: by the index of the notice, or "error"."""
    hints = {str(number): each.hint for number, each in enumerate(envelope.notices)}
    if isinstance(envelope, Failure):
        hints["error"] = envelope.hint
    phrased = {name: hint for name, hint in hints.items() if isinstance(hint, Hint)}
    return {name: {"cli": hint.cli, "host": hint.host} for name, hint in phrased.items()}


def _hint(data: Mapping[str, Any], name: str, hint: object) -> str:
    words = (data.get("hints") or {}).get(name)
    return str(hint) if words is None else Hint(str(hint), str(words["cli"]), str(words["host"]))


def read_envelope(kind: type[Result], data: Mapping[str, Any]) -> Envelope[Any]:
    """Return the envelope that ``envelope_data`` wrote, with a result of ``kind``. Raises ValueError for what is no envelope.

    Fields that are not known here are left out: the service may be newer.
    """
    try:
        common: dict[str, Any] = {
            "timestamp": str(data["timestamp"]),
            "duration_ms": float(data["duration_ms"]),
            "notices": tuple(
                Notice(str(n["code"]), str(n["message"]), _hint(data, str(number), n["hint"]))
                for number, n in enumerate(data["notices"])
            ),
        }
        result = _read_result(kind, data["result"], data.get("bytes") or {})
        if data["tool_executed"]:
            if result is None:
                raise ValueError("a success without a result")
            return Success(result, **common)
        names = ("next_tool", "retryable", "effects", "schema", "reason")
        more = {name: data[name] for name in names if name in data}
        hint = _hint(data, "error", data["hint"])
        return Failure(ErrorCode(data["code"]), str(data["error"]), hint, result=result, **more, **common)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an envelope: {error!r}") from error


def _read_result(kind: type[Result], data: Mapping[str, Any] | None, beside: Mapping[str, str]) -> Result | None:
    if data is None:
        return None
    known = {name: value for name, value in data.items() if name in kind.model_fields}
    for name in _bytes_fields(kind):
        if name in beside:
            known[name] = base64.b64decode(beside[name], validate=True)
        elif (text := _as_text(name, data)) is not None:
            known[name] = text
        else:
            known.pop(name, None)
    return kind.model_validate(known)


def _bytes_fields(kind: type[Result]) -> Iterator[str]:
    return (name for name, field in kind.model_fields.items() if field.annotation in (bytes, bytes | None))


def _as_text(name: str, data: Mapping[str, Any]) -> bytes | None:
    """Return the UTF-8 of the text that stands for a field of bytes, or None if there is none."""
    text = data.get(name.removesuffix("_bytes"))
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else None
