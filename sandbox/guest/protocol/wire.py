"""Frames on the one pipe between host and guest; both ends use this codec.

A frame is a 24-byte header and a payload of at most 256 KiB:

    nonce 8 bytes | sequence u32 | kind u8 | 3 zero bytes | channel u32 | payload length u32      (big endian)

The host speaks first and picks the nonce; both directions carry it and count their frames from 0, so a cut, a repeat or
foreign bytes are noticed at once. A message (request, reply, notice) is JSON followed by a blob: ``u32 JSON length | JSON |
blob``. A message longer than one frame is sent as PART frames and ends with the frame of its own kind. DATA frames are streams
(upload, download, connections) under credit: a sender may have WINDOW bytes in flight that the receiver has not credited back.
"""

from __future__ import annotations

import struct

from . import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    # Receives a piece of a stream; the memory is valid until it returns.
    Taker: TypeAlias = "Callable[[memoryview], None]"

# Raised when hosts and guests of two versions would misunderstand each other: 2 has the content of ``write`` in the blob.
PROTOCOL = 3
HEADER = struct.Struct(">8sIB3sII")
MAX_PAYLOAD = 256 * 1024
WINDOW = 2 * 1024 * 1024
# The window of one connection through the pipe: there may be hundreds, and the guest holds what a stalled program does not read.
TUNNEL_WINDOW = 512 * 1024
# A connection whose reader keeps up may have a window of this size; all windows together grow by GROWTH_BYTES at most.
MOST_TUNNEL_WINDOW = 2 * 1024 * 1024
GROWTH_BYTES = 8 * 1024 * 1024
# The payload of a connection's frames from the guest: short enough that other frames between two of them are not late.
FLOW_CHUNK = 128 * 1024 - HEADER.size
# Channels that the guest opens have the highest bit set.
GUEST_CHANNELS = 0x80000000
NONCE_BYTES = 8
# The guest's descriptors of the pipe once it has answered a host.
INPUT_FD, OUTPUT_FD = 3, 4
# A request carries at most one written text (8 MiB, six times that in the worst JSON escapes) and a few fields.
MAX_MESSAGE = 64 * 1024 * 1024
# The longest reply that a host accepts, unless the request names another limit.
MAX_REPLY = 4 * 1024 * 1024
_ZERO, _NOTHING = b"\0\0\0", memoryview(b"")
# Of a long payload this much is copied behind its header: enough for one write to be worth while.
COPIED_BYTES = 16 * 1024
_LENGTH = struct.Struct(">I")


class Kind:
    """Kinds of frames: plain numbers, because ``enum`` costs a guest 0.7 MiB."""

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


KINDS = range(Kind.HELLO, Kind.ROUTE + 1)


class WireError(Exception):
    """The bytes on the pipe violate the protocol; the pipe cannot be trusted any more."""


class ForeignNonceError(WireError):
    """A frame of another conversation; ``nonce`` is the one it carries."""

    def __init__(self, nonce: bytes) -> None:
        super().__init__("frame with a foreign nonce")
        self.nonce = nonce


def frame(nonce: bytes, sequence: int, kind: int, channel: int, payload: bytes | memoryview = b"") -> bytes:
    """Encode one frame. Raises ValueError for a payload over MAX_PAYLOAD."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError("payload too long for one frame")
    return HEADER.pack(nonce, sequence & 0xFFFFFFFF, kind, _ZERO, channel, len(payload)) + payload


def frame_pieces(
    nonce: bytes, sequence: int, kind: int, channel: int, payload: bytes | memoryview
) -> tuple[memoryview, memoryview]:
    """Encode one frame in two pieces: the second is the rest of a long payload, not copied if nothing can change its bytes."""
    if len(payload) <= COPIED_BYTES:
        return memoryview(frame(nonce, sequence, kind, channel, payload)), _NOTHING
    view = memoryview(payload)
    if len(view) > MAX_PAYLOAD or not isinstance(view.obj, bytes):
        return memoryview(frame(nonce, sequence, kind, channel, payload)), _NOTHING
    header = HEADER.pack(nonce, sequence & 0xFFFFFFFF, kind, _ZERO, channel, len(view))
    return memoryview(header + view[:COPIED_BYTES]), view[COPIED_BYTES:]


class Decoder:
    """Decode frames from bytes. If ``nonce`` is None, the first frame sets it (the guest's side).

    ``taker(channel)`` returns the function that receives the payload of a DATA frame piece by piece, as it arrives and without
    a copy, or None if the payload is to be returned with its frame. A piece is valid until ``feed`` goes on.
    """

    def __init__(self, nonce: bytes | None, taker: Callable[[int], Taker | None] | None = None) -> None:
        self.nonce = nonce
        self.taker = taker
        self._frame: tuple[int, int, int] | None = None  # kind, channel and length of a frame whose payload is not complete
        self._buffer = bytearray()  # the beginning of a payload, or else of a header
        self._sequence = 0
        self._take: Taker | None = None
        self._left = 0  # bytes of the payload that ``_take`` still has to receive

    @property
    def begun(self) -> bool:
        """Whether a frame has come."""
        return self._sequence > 0

    @property
    def buffered(self) -> int:
        """How many bytes wait for the rest of their frame; never more than one frame."""
        return len(self._buffer) + (HEADER.size if self._frame is not None else 0)

    @property
    def held(self) -> bytes:
        """The bytes that wait for the rest of their header; after a WireError they start with the invalid ones."""
        return bytes(self._buffer)

    def skip_foreign(self) -> bytes:
        """Forget the bytes that raised ForeignNonceError. Returns those from the next frame of this conversation on, to be fed."""
        held, nonce = self.held, self.nonce or b""
        self._buffer.clear()
        if (at := held.find(nonce, 1)) >= 0:
            return held[at:]
        return next((held[-n:] for n in range(NONCE_BYTES - 1, 0, -1) if held.endswith(nonce[:n])), b"")

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
        """Yield the frames that ``data`` completes, as (kind, channel, payload). Raises WireError."""
        view = memoryview(data)
        while view:
            if self._left and self._take is not None:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self._take(piece)
                continue
            if self._frame is None:
                view = self._collect(view, HEADER.size)
                if len(self._buffer) < HEADER.size:
                    return
                self._frame = self._header(view)
                self._buffer.clear()
            kind, channel, length = self._frame
            asked = self.taker if kind == Kind.DATA and length and not self._buffer else None
            if asked is not None and (take := asked(channel)) is not None:
                self._take, self._left = take, length
                self._end_frame()
                continue
            if not self._buffer and len(view) >= length:  # usually: all of it is here, and copied once
                payload, view = bytes(view[:length]), view[length:]
            else:
                view = self._collect(view, length)
                if len(self._buffer) < length:
                    return
                payload = bytes(self._buffer)
            self._end_frame()
            yield kind, channel, payload

    def _collect(self, view: memoryview, size: int) -> memoryview:
        """Fill the buffer up to ``size`` bytes. Returns the rest of ``view``."""
        missing = max(0, size - len(self._buffer))
        self._buffer += view[:missing]
        return view[missing:]

    def _end_frame(self) -> None:
        self._frame = None
        self._buffer.clear()
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF

    def _header(self, rest: memoryview) -> tuple[int, int, int]:
        """Return kind, channel and length from the buffered header. Raises WireError; the buffer then has all unread bytes."""
        try:
            return self._parse_header()
        except WireError:
            self._buffer += rest
            raise

    def _parse_header(self) -> tuple[int, int, int]:
        if self.nonce is None:
            self.nonce = bytes(self._buffer[:NONCE_BYTES])
        return parse_header(self._buffer, self.nonce, self._sequence)


def parse_header(header: bytes | bytearray | memoryview, due_nonce: bytes, due: int) -> tuple[int, int, int]:
    """Return kind, channel and length of the frame that begins with ``header``. Raises WireError unless it is due."""
    nonce, sequence, kind, zero, channel, length = HEADER.unpack_from(header)
    if nonce != due_nonce or zero != _ZERO:
        raise ForeignNonceError(nonce)
    if sequence != due:
        raise WireError(f"frame {sequence} where {due} was due")
    if kind not in KINDS:
        raise WireError(f"unknown frame kind {kind}")
    if length > MAX_PAYLOAD:
        raise WireError(f"frame of {length} bytes")
    return kind, channel, length


def pack_message(fields: dict[str, Any], blob: bytes = b"", *, exact: bool = False, any_number: bool = False) -> bytes:
    """Encode a message. Surrogates in its texts become "?", or with ``exact`` arrive unchanged.

    Raises ValueError for a number that JSON does not have (NaN, infinity), which would make the other end close the pipe; not
    with ``any_number``.
    """
    text = json_text.encode(fields, any_number=any_number)
    encoded = text.encode("utf-8", "surrogatepass" if exact else "replace")
    return _LENGTH.pack(len(encoded)) + encoded + blob


def unpack_message(data: bytes | memoryview, *, exact: bool = False) -> tuple[dict[str, Any], bytes]:
    """Return the fields and the blob of a message. Raises WireError for anything but one JSON object in UTF-8.

    Surrogates in its texts cannot be displayed or encoded later: only ``exact`` allows them.
    """
    if len(data) < _LENGTH.size:
        raise WireError("message too short")
    (length,) = _LENGTH.unpack_from(data)
    if length > len(data) - _LENGTH.size:
        raise WireError("message shorter than it says")
    encoded = bytes(data[_LENGTH.size : _LENGTH.size + length])
    try:
        fields = json_text.decode(encoded.decode("utf-8", "surrogatepass" if exact else "strict"))
        if not exact and (b"\\ud" in encoded or b"\\uD" in encoded):
            json_text.encode(fields, any_number=True).encode()
    except (ValueError, RecursionError) as error:
        raise WireError("message is not JSON") from error
    if not isinstance(fields, dict):
        raise WireError("message is not an object")
    return fields, bytes(data[_LENGTH.size + length :])


def split_message(kind: int, message: bytes, blob: bytes = b"") -> Iterator[tuple[int, bytes | memoryview]]:
    """Yield the frames (kind, payload) that carry ``message`` and ``blob`` behind it: PARTs, then one of its own kind.

    The same as for a message that was packed with its blob, which a long one is not copied for.
    """
    if len(message) + len(blob) <= MAX_PAYLOAD:
        yield kind, message + blob
        return
    rest = memoryview(message)
    for then in (memoryview(blob), None):
        while len(rest) > MAX_PAYLOAD or (rest and then):
            yield Kind.PART, rest[:MAX_PAYLOAD]
            rest = rest[MAX_PAYLOAD:]
        rest = then or rest
    yield kind, rest


class Assembler:
    """Join PART frames into messages of at most ``limit`` bytes."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._parts: dict[int, bytearray] = {}

    def add(self, channel: int, payload: bytes | memoryview, limit: int | None = None) -> bool:
        """Add a part of the message on ``channel``. Returns False, and forgets the message, if it exceeds ``limit``.

        Raises WireError if it exceeds the limit of all messages.
        """
        parts = self._parts.setdefault(channel, bytearray())
        if limit is not None and len(parts) + len(payload) > limit:
            del self._parts[channel]
            return False
        if len(parts) + len(payload) > self._limit:
            raise WireError("message too long")
        parts += payload
        return True

    def finish(self, channel: int, payload: bytes | memoryview) -> bytes | memoryview:
        """Return the whole message that ends with ``payload``."""
        parts = self._parts.pop(channel, None)
        if parts is None:
            return payload
        parts += payload
        return memoryview(parts)

    def drop(self, channel: int) -> None:
        """Forget the parts collected for ``channel``."""
        self._parts.pop(channel, None)


class SendWindow:
    """How many bytes may still be sent: ``left``. Credit restores it, up to ``limit`` (its first size if None)."""

    __slots__ = ("_limit", "left")

    def __init__(self, size: int, limit: int | None = None) -> None:
        self.left = size
        self._limit = size if limit is None else limit

    def use(self, count: int) -> None:
        """Count bytes that are sent."""
        self.left -= count

    def add_credit(self, count: int) -> None:
        """Count bytes that the receiver credits; those beyond the limit are ignored."""
        self.left = min(self.left + count, self._limit)


class ReceiveWindow:
    """How many bytes a sender may have in flight: ``size``. ``held`` bytes have arrived and were not consumed yet."""

    __slots__ = ("_owed", "held", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self._owed = 0

    @property
    def overrun(self) -> bool:
        """Whether the sender has sent more than it had credit for."""
        return self.held > self.size

    def receive(self, count: int) -> None:
        """Count bytes that arrived."""
        self.held += count

    def consume(self, count: int) -> None:
        """Count bytes that need no room any more; they are owed to the sender as credit."""
        self.held -= count
        self._owed += count

    @property
    def owed(self) -> int:
        """How many bytes were consumed and not credited yet."""
        return self._owed

    @property
    def credit_due(self) -> bool:
        """Whether enough is owed (a quarter of the window) to be worth a frame."""
        return self._owed >= self.size // 4

    def credit(self, growth: int = 0) -> bytes:
        """Return the payload of a CREDIT frame for all that is owed, and for ``growth`` bytes that the window becomes larger."""
        payload = (self._owed + growth).to_bytes(4, "big")
        self._owed = 0
        self.size += growth
        return payload


def parse_credit(payload: bytes) -> int:
    """Return the number of bytes that a CREDIT frame credits."""
    return int.from_bytes(payload[:4], "big")
