"""Frames out to a guest: whole and in order, from any thread, and never past the caller's deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sandbox.guest.protocol import wire
from sandbox.interrupts import Shield

# A connection's frame waits for room this long at a time.
TURN_SECONDS = 0.05


class ByteSink(Protocol):
    """A byte stream to write frames to."""

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """Write some of ``data`` and return how many bytes; 0 if nothing could be written in time. Raises OSError."""

    def has_room(self, timeout_seconds: float) -> bool:
        """Return whether much can be written, waiting for that up to ``timeout_seconds``. Raises OSError."""


class Connections(Protocol):
    """Connections whose bytes use the pipe too; called by its reader."""

    def takes(self, channel: int) -> bool:
        """Return whether ``channel`` belongs to a connection."""

    def take(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        """Take a frame of the guest. Raises WireError for what the protocol does not allow."""

    def cut(self, why: str) -> None:
        """End all connections, since the pipe has ended; ``why`` is a clause."""


class FrameSender:
    """Numbers frames and writes them to ``sink``. May be used by many threads.

    The next caller finishes a frame that was begun, so that a caller that gives up half-way, at its deadline or at a Ctrl-C,
    does not break the pipe for the others; signals wait until what was written is also recorded. Connections' bytes
    (``flow``) let everything else go first.
    """

    def __init__(self, sink: ByteSink, nonce: bytes) -> None:
        self._sink = sink
        self._nonce = nonce
        self._sequence = 0
        self._unsent = self._rest = memoryview(b"")  # of the frame being sent: the first piece, and what follows it
        self._lock = threading.Lock()
        self._calm = threading.Condition()
        self._first = 0  # callers of ``send`` that have not sent yet

    def send(self, kind: int, channel: int, payload: bytes | memoryview, deadline: float) -> bool:
        """Send one frame; False if the pipe did not take all of it by ``deadline`` (monotonic). Raises OSError."""
        with Shield() as shield:
            with self._calm:
                self._first += 1
            try:
                return self._send(kind, channel, payload, deadline, shield)
            finally:
                with self._calm:
                    self._first -= 1
                    self._calm.notify_all()  # several may wait in ``flow``

    def _send(self, kind: int, channel: int, payload: bytes | memoryview, deadline: float, shield: Shield) -> bool:
        begun = -1
        while True:
            with self._lock:
                if self._flush() and begun < 0:
                    self._begin(kind, channel, payload)
                    begun = self._sequence
                    self._flush()
                if begun >= 0 and (not self._unsent or self._sequence > begun):
                    return True
            # With the lock released: another frame, or its rest, may be what is waited for.
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if shield.struck:
                shield.deliver()
            self._sink.has_room(min(left, TURN_SECONDS))

    def offer(self, channel: int, frames: Sequence[tuple[int, bytes | memoryview]]) -> bool | None:
        """Send a frame, or several short ones, without waiting: True if all of it was sent, None if nothing. Raises OSError.

        False if a part was sent: the next frame is sent after the rest. Several are written at once, so that the guest wakes once.
        Call it within a Shield.
        """
        with self._lock:
            if not self._flush():
                return None
            unsent = []
            for kind, payload in frames:
                self._begin(kind, channel, payload)
                unsent += [self._unsent, self._rest]
            if len(frames) > 1:
                self._unsent, self._rest = memoryview(b"".join(unsent)), memoryview(b"")
            return self._flush()

    def reroute(self, change: Callable[[], object]) -> bool:
        """Call ``change``, which redirects the sink, if only the greeting was sent so far; returns whether it was called."""
        with self._lock:
            if self._sequence != 1 or self._unsent:
                return False
            change()
            return True

    def flow(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        """Send one frame of a connection, waiting as long as the pipe is full. Raises OSError.

        Waits for room with no lock held, so that other frames can use the room there is.
        """
        begun = False
        while True:
            if not self._sink.has_room(TURN_SECONDS):
                continue
            with self._calm:
                while self._first:
                    self._calm.wait()
            with self._lock:
                if self._flush():
                    if begun:
                        return
                    self._begin(kind, channel, payload)
                    begun = True
                    if self._flush():
                        return

    def _begin(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        self._unsent, self._rest = wire.frame_pieces(self._nonce, self._sequence, kind, channel, payload)
        self._sequence += 1

    def _flush(self) -> bool:
        """Write what is unsent, as far as there is room for it now; return whether all of it is written."""
        while self._unsent:
            sent = self._sink.send(self._unsent, 0)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]
            if not self._unsent:
                self._unsent, self._rest = self._rest, self._unsent
        return True
