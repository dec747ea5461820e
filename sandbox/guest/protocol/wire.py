"""Frames on the one pipe between host and guest; both ends use this codec.

A frame is a 24-byte header and a payload of at most 256 KiB:

    nonce 8 bytes | sequence u32 | kind u8 | 3 zero bytes | channel u32 | payload length u32      (big endian)

The host speaks first and picks the nonce; both directions carry it and count their frames from 0, so a cut, a repeat or
foreign bytes are noticed at once. A message (request, reply, notice) is JSON with a blob behind it: ``u32 JSON length | JSON
| blob``. A message longer than one frame is sent as PART frames and ends with the frame of its own kind. DATA frames are
streams (upload, download) under credit: a sender may have WINDOW bytes under way that were not credited back.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    # Takes a piece of a stream, which holds until it returns.
    Taker: TypeAlias = "Callable[[memoryview], None]"

PROTOCOL = 1
HEADER = struct.Struct(">8sIB3sII")
MAX_PAYLOAD = 256 * 1024
WINDOW = 2 * 1024 * 1024
# Of one connection through the pipe: there may be hundreds, and a guest holds what a stalled program does not take.
TUNNEL_WINDOW = 512 * 1024
# What it may grow to where all that came was taken at once; all windows of a sandbox together grow by so much at most.
MOST_TUNNEL_WINDOW = 2 * 1024 * 1024
GROWTH_BYTES = 8 * 1024 * 1024
# Of a connection's frames from the guest: short enough that a frame of something else between two of them is not late.
FLOW_CHUNK = 128 * 1024 - HEADER.size
NONCE_BYTES = 8
# Where the guest of a container has the two ends of the pipe once it has answered a host, and what that may read instead of the
# second (see ``shortcut``).
INPUT_FD, OUTPUT_FD, SHORTCUT_FD = 3, 4, 5
# Requests carry at most one written text (8 MiB, six times that in the worst JSON escapes) and some fields.
MAX_MESSAGE = 64 * 1024 * 1024
# What a host takes as a reply, unless the request says another.
MAX_REPLY = 4 * 1024 * 1024
_ZERO = b"\0\0\0"
_LENGTH = struct.Struct(">I")


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    REQUEST = 2
    REPLY = 3
    PART = 4
    DATA = 5
    END = 6
    CREDIT = 7
    CANCEL = 8
    PING = 9
    PONG = 10
    NOTICE = 11
    DETACH = 12
    OPEN = 13
    ROUTE = 14


_KINDS = frozenset(int(k) for k in Kind)


class WireError(Exception):
    """The bytes on the pipe are not what the protocol allows; the pipe cannot be trusted any more."""


class ForeignNonceError(WireError):
    """A frame of another conversation; ``nonce`` are its first bytes."""

    def __init__(self, nonce: bytes) -> None:
        super().__init__("frame with a foreign nonce")
        self.nonce = nonce


def frame(nonce: bytes, sequence: int, kind: int, channel: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame as bytes. Raises ValueError for a payload over MAX_PAYLOAD."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError("payload too long for one frame")
    return HEADER.pack(nonce, sequence & 0xFFFFFFFF, kind, _ZERO, channel, len(payload)) + payload


class Decoder:
    """Bytes in, frames out. ``nonce`` may be None: then the first frame sets it (the guest's side).

    ``taker(channel)`` is asked who takes the payload of a DATA frame in pieces, as they come and without a copy; None where it
    is to come out with its frame. A piece holds until ``feed`` goes on.
    """

    def __init__(self, nonce: bytes | None, taker: Callable[[int], Taker | None] | None = None) -> None:
        self.nonce = nonce
        self.taker = taker
        self._buffer = bytearray()
        self._sequence = 0
        self._take: Taker | None = None
        self._left = 0  # of the payload that ``_take`` has

    @property
    def buffered(self) -> int:
        """Bytes held back until their frame is whole; never more than one frame."""
        return len(self._buffer)

    @property
    def held(self) -> bytes:
        """The bytes of ``buffered``; after a WireError they start with what was no frame."""
        return bytes(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
        """The frames that ``data`` completes, as (kind, channel, payload). Raises WireError."""
        view = memoryview(data)
        while view:
            if self._left and self._take is not None:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self._take(piece)
                continue
            view = self._collect(view, HEADER.size)
            if len(self._buffer) < HEADER.size:
                return
            kind, channel, length = self._header(view)
            asked = self.taker if kind == Kind.DATA and length and len(self._buffer) == HEADER.size else None
            if asked is not None and (take := asked(channel)) is not None:
                self._take, self._left = take, length
                self._done()
                continue
            view = self._collect(view, HEADER.size + length)
            if len(self._buffer) < HEADER.size + length:
                return
            payload = bytes(memoryview(self._buffer)[HEADER.size :])
            self._done()
            yield kind, channel, payload

    def _collect(self, view: memoryview, size: int) -> memoryview:
        """Fill the buffer up to ``size`` bytes; what is left of ``view``."""
        missing = max(0, size - len(self._buffer))
        self._buffer += view[:missing]
        return view[missing:]

    def _done(self) -> None:
        self._buffer.clear()
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF

    def _header(self, behind: memoryview) -> tuple[int, int, int]:
        """The header that the buffer begins with."""
        try:
            return self._checked()
        except WireError:
            self._buffer += behind
            raise

    def _checked(self) -> tuple[int, int, int]:
        nonce, sequence, kind, zero, channel, length = HEADER.unpack_from(self._buffer)
        if self.nonce is None:
            self.nonce = nonce
        if nonce != self.nonce or zero != _ZERO:
            raise ForeignNonceError(nonce)
        if sequence != self._sequence:
            raise WireError(f"frame {sequence} where {self._sequence} was due")
        if kind not in _KINDS:
            raise WireError(f"unknown frame kind {kind}")
        if length > MAX_PAYLOAD:
            raise WireError(f"frame of {length} bytes")
        return kind, channel, length


def pack_message(fields: dict[str, Any], blob: bytes = b"", *, exact: bool = False, any_number: bool = False) -> bytes:
    """A message as bytes. Surrogates in its texts become "?", or with ``exact`` arrive as they are.

    Raises ValueError for a number that is none of JSON, but with ``any_number``: the other end would end the pipe over it.
    """
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=any_number)
    encoded = text.encode("utf-8", "surrogatepass" if exact else "replace")
    return _LENGTH.pack(len(encoded)) + encoded + blob


def unpack_message(data: bytes, *, exact: bool = False) -> tuple[dict[str, Any], bytes]:
    """Fields and blob of a message. Raises WireError for anything that is not one JSON object in UTF-8.

    Surrogates in its texts are nothing that could be shown to anybody: they are allowed with ``exact`` alone.
    """
    if len(data) < _LENGTH.size:
        raise WireError("message too short")
    (length,) = _LENGTH.unpack_from(data)
    if length > len(data) - _LENGTH.size:
        raise WireError("message shorter than it says")
    encoded = data[_LENGTH.size : _LENGTH.size + length]
    try:
        fields = _JSON.decode(encoded.decode("utf-8", "surrogatepass" if exact else "strict"))
        if not exact and (b"\\ud" in encoded or b"\\uD" in encoded):
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise WireError("message is not JSON") from error
    if not isinstance(fields, dict):
        raise WireError("message is not an object")
    return fields, data[_LENGTH.size + length :]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)


def split_message(kind: int, message: bytes) -> Iterator[tuple[int, memoryview]]:
    """The frames (kind, payload) that carry ``message``: PARTs, then one of its own kind."""
    view = memoryview(message)
    while len(view) > MAX_PAYLOAD:
        yield Kind.PART, view[:MAX_PAYLOAD]
        view = view[MAX_PAYLOAD:]
    yield kind, view


class Assembler:
    """Puts PART frames together again; ``limit`` bounds one message in bytes."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._parts: dict[int, bytearray] = {}

    def add(self, channel: int, payload: bytes, limit: int | None = None) -> bool:
        """One more part of the message on ``channel``; False when it grows past ``limit``: it is forgotten then.

        Raises WireError when it grows past the limit of all messages.
        """
        parts = self._parts.setdefault(channel, bytearray())
        if limit is not None and len(parts) + len(payload) > limit:
            del self._parts[channel]
            return False
        if len(parts) + len(payload) > self._limit:
            raise WireError("message too long")
        parts += payload
        return True

    def finish(self, channel: int, payload: bytes) -> bytes:
        """The whole message that ``payload`` ends."""
        parts = self._parts.pop(channel, None)
        return payload if parts is None else bytes(parts) + payload

    def drop(self, channel: int) -> None:
        """Forget what was collected for ``channel``."""
        self._parts.pop(channel, None)
