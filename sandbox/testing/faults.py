"""Disturb a stream of bytes: late, slow, stalled, cut or garbled. For ``EngineProxy`` and ``FaultyStream``."""

from __future__ import annotations

import threading
import time

from sandbox.frozen import dataclass
from sandbox.pipe.reattaching import ByteStream

# A throttled passage lets through pieces of this many seconds' worth of bytes.
_SLICE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What happens to the bytes of one direction, counted from when the faults were set; the default is nothing.

    ``delay_seconds`` delays each piece, as it was read. ``bytes_per_second`` is the maximal rate. ``cut_after_bytes`` ends the
    connection, in both directions, after this many bytes; 0 cuts it at the next byte. ``garble_at`` is the position of a byte whose
    bits are inverted. ``stalled`` lets nothing pass, without cutting. Raises ValueError for a negative number.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None
    cut_after_bytes: int | None = None
    garble_at: int | None = None
    stalled: bool = False

    def __post_init__(self) -> None:
        numbers = (self.delay_seconds, self.bytes_per_second, self.cut_after_bytes, self.garble_at)
        if any(number is not None and number < 0 for number in numbers) or self.bytes_per_second == 0:
            raise ValueError(f"{self} has a number that makes no sense; to let nothing pass, say stalled=True")


class Passage:
    """One direction: ``put`` a piece, then ``get`` what passes of it until ``waiting`` is false. One thread puts and gets."""

    def __init__(self) -> None:
        self._faults = Faults()
        self._passed = 0
        self._held = b""
        self._due = 0.0
        self._cut = False
        self._changed = threading.Condition()

    def change(self, faults: Faults) -> None:
        """Apply ``faults`` from now on. May be called from any thread."""
        with self._changed:
            self._faults, self._passed = faults, 0
            self._due = min(self._due, time.monotonic() + faults.delay_seconds)
            self._changed.notify_all()

    def cut(self) -> None:
        """Let nothing pass any more. May be called from any thread."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether a piece that was put has not passed completely."""
        return bool(self._held) and not self._cut

    @property
    def is_cut(self) -> bool:
        """Whether the passage was cut."""
        return self._cut

    def put(self, data: bytes) -> None:
        """Put in the next piece. Call it only after the last has passed."""
        with self._changed:
            self._held = data
            self._due = max(self._due, time.monotonic() + self._faults.delay_seconds)

    def get(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the next bytes that pass: b"" after a cut, None if nothing passed in time."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            while not self._cut:
                now = time.monotonic()
                wait = None if self._faults.stalled or not self._held else self._due - now
                if wait is not None and wait <= 0:
                    return self._pass()
                if deadline is not None:
                    if now >= deadline:
                        return None
                    wait = deadline - now if wait is None else min(wait, deadline - now)
                self._changed.wait(wait)
            return b""

    def _pass(self) -> bytes:
        faults = self._faults
        size = len(self._held)
        if faults.bytes_per_second is not None:
            size = min(size, max(1, int(faults.bytes_per_second * _SLICE_SECONDS)))
            self._due = time.monotonic() + size / faults.bytes_per_second
        if faults.cut_after_bytes is not None:
            size = min(size, faults.cut_after_bytes - self._passed)
            self._cut = size == faults.cut_after_bytes - self._passed
        piece, self._held = self._held[:size], self._held[size:]
        if faults.garble_at is not None and 0 <= faults.garble_at - self._passed < size:
            at = faults.garble_at - self._passed
            piece = piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
        self._passed += size
        return piece


class FaultyStream:
    """A ByteStream over another one, with faults in each direction, which may change at any time.

        stream = FaultyStream(SocketStream(connected))
        host = Transport(stream, explain)
        stream.inbound.change(Faults(cut_after_bytes=100))

    ``close`` cuts both directions at once.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.inbound, self.outbound = Passage(), Passage()
        self._stream = stream
        self._unsent = memoryview(b"")  # has passed, but the stream has not accepted it yet

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """See ``ByteStream``. The next call must repeat the part of ``data`` that was not written, as FrameSender does."""
        deadline = time.monotonic() + timeout_seconds
        if not self._unsent and not self.outbound.waiting:
            self.outbound.put(bytes(data))
        sent = 0
        while self._unsent or self.outbound.waiting:
            if not self._unsent:
                self._unsent = memoryview(self.outbound.get(max(0.0, deadline - time.monotonic())) or b"")
            taken = self._stream.send(self._unsent, max(0.0, deadline - time.monotonic())) if self._unsent else 0
            if not taken and not self.outbound.is_cut:
                break
            self._unsent = self._unsent[taken:]
            sent += taken
        if self.outbound.is_cut:
            self.close()
            if not sent:
                raise BrokenPipeError("the stream was cut")
        return sent

    def has_room(self, timeout_seconds: float) -> bool:
        return self._stream.has_room(timeout_seconds)

    def receive(self, timeout_seconds: float) -> bytes | None:
        deadline = time.monotonic() + timeout_seconds
        if not self.inbound.waiting and not self.inbound.is_cut:
            data = self._stream.receive(timeout_seconds)
            if not data:
                return data
            self.inbound.put(data)
        piece = self.inbound.get(max(0.0, deadline - time.monotonic()))
        if self.inbound.is_cut:
            self.close()
        return piece

    def close(self) -> None:
        self.inbound.cut()
        self.outbound.cut()
        self._stream.close()
