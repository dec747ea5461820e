"""A chain of hashes, so that no event can be changed unnoticed: each covers the canonical JSON of an event and the last hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

# Longer texts are stored beside the events, once for all events that contain them.
INLINE_CHARS = 4096
# Bytes of an event's JSON; longer JSON is stored beside it as a whole.
MOST_INLINE_BYTES = 256 << 10
# Bytes of one text beside the events, and the sum of those of one event.
MOST_BLOB_BYTES = 64 << 20
_REFERENCE, _WHOLE = "$text", "$json"

Blobs = dict[str, bytes]


def canonical(value: Any) -> str:
    """Return ``value`` as JSON, the same for equal values; in ASCII, so that lone surrogates survive. Raises ValueError."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(run: str, ident: int, parent: str | None, kind: str, at: str, data: str, previous: str) -> str:
    """Return the SHA-256 of an event and the hash before it. The columns are items of a JSON list, so none can pass for another."""
    return hashlib.sha256(canonical([run, ident, parent, kind, at, data, previous]).encode()).hexdigest()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a text beside the events."""
    return hashlib.sha256(content).hexdigest()


def encode_event(data: Mapping[str, Any]) -> tuple[str, Blobs]:
    """Return the JSON of an event's data, and the texts that are stored beside it.

    Raises ValueError for data that JSON cannot represent, or that has more than MOST_BLOB_BYTES.
    """
    blobs: Blobs = {}
    text = canonical(_without_texts(data, blobs))
    if len(text) > MOST_INLINE_BYTES:
        text = canonical({_WHOLE: _beside(text.encode(), blobs)})
    if sum(map(len, blobs.values())) > MOST_BLOB_BYTES:
        raise ValueError(f"it has more than {MOST_BLOB_BYTES >> 20} MiB")
    return text, blobs


def decode_event(text: str, blob: Callable[[str], bytes]) -> dict[str, Any]:
    """Return the data of an event; ``blob`` finds a text by its digest. Raises ValueError if it is not an event's, KeyError for a
    missing text.
    """
    data = json.loads(text)
    if isinstance(data, dict) and isinstance(data.get(_WHOLE), str):
        data = json.loads(blob(data[_WHOLE]))
    found = _with_texts(data, blob)
    if not isinstance(found, dict):
        raise ValueError("the data of an event is an object")  # noqa: TRY004 - hostile data, not a wrong call
    return found


def _beside(content: bytes, blobs: Blobs) -> str:
    digest = digest_of(content)
    blobs[digest] = content
    return digest


def _without_texts(value: Any, blobs: Blobs) -> Any:
    if isinstance(value, str):
        if len(value) <= INLINE_CHARS:
            return value
        return {_REFERENCE: _beside(value.encode("utf-8", "surrogatepass"), blobs)}
    if isinstance(value, Mapping):
        # A key that looks like ours gets one more "$": nothing that a model or a sandbox writes is taken for a reference.
        return {f"${k}" if str(k).startswith("$") else str(k): _without_texts(v, blobs) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_texts(each, blobs) for each in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(value)
    return value


def _with_texts(value: Any, blob: Callable[[str], bytes]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_REFERENCE}:
            return blob(str(value[_REFERENCE])).decode("utf-8", "surrogatepass")
        return {k.removeprefix("$"): _with_texts(v, blob) for k, v in value.items()}
    return [_with_texts(each, blob) for each in value] if isinstance(value, list) else value
