"""Faults on a way that bytes take: late, slow, stalled, cut or garbled. For ``EngineProxy`` and ``FaultyStream``."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from sandbox.pipe.reattaching import ByteStream

# A throttled way passes pieces of this many seconds' worth of bytes.
_SLICE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What happens to the bytes of one direction, counted from when the faults were set; the default is nothing.

    ``delay_seconds`` holds back each piece, as it was read, for that long. ``bytes_per_second`` is the most that passes.
    ``cut_after_bytes`` ends the connection, in both directions, once so many bytes have passed: 0 with the next one.
    ``garble_at`` is the position of a byte whose bits are inverted. ``stalled`` lets nothing pass and cuts nothing.
    Raises ValueError for a negative number.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None
    cut_after_bytes: int | None = None
    garble_at: int | None = None
    stalled: bool = False

    def __post_init__(self) -> None:
        given = (self.delay_seconds, self.bytes_per_second, self.cut_after_bytes, self.garble_at)
        if any(number is not None and number < 0 for number in given) or self.bytes_per_second == 0:
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
        """Have ``faults`` from now on; from any thread."""
        with self._changed:
            self._faults, self._passed = faults, 0
            self._due = min(self._due, time.monotonic() + faults.delay_seconds)
            self._changed.notify_all()

    def cut(self) -> None:
        """Let nothing pass ever again; from any thread."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether something that was put has not passed yet."""
        return bool(self._held) and not self._cut

    @property
    def is_cut(self) -> bool:
        """Whether the way has ended."""
        return self._cut

    def put(self, data: bytes) -> None:
        """Give the next piece; only when the last has passed."""
        with self._changed:
            self._held = data
            self._due = max(self._due, time.monotonic() + self._faults.delay_seconds)

    def get(self, timeout_seconds: float | None = None) -> bytes | None:
        """The next bytes that pass; b"" where the way was cut, None where nothing passed in time."""
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
    """A ``transport.ByteStream`` over another one, with faults on the way in and on the way out, which may change at any time.

        stream = FaultyStream(SocketStream(connected))
        host = Transport(stream, explain)
        stream.inbound.change(Faults(cut_after_bytes=100))

    ``close`` cuts it at once.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.inbound, self.outbound = Passage(), Passage()
        self._stream = stream
        self._unsent = memoryview(b"")  # has passed, and the stream did not take it yet

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """See ``ByteStream``. What was not taken of ``data`` has to come again with the next call, as it does from a sender."""
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
        """See ``ByteSink``."""
        return self._stream.has_room(timeout_seconds)

    def receive(self, timeout_seconds: float) -> bytes | None:
        """See ``ByteStream``."""
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
        """See ``ByteStream``."""
        self.inbound.cut()
        self.outbound.cut()
        self._stream.close()
