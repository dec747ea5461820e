"""Frames out to a guest: whole and in order whoever sends them, and never past the caller's deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from sandbox.guest.protocol import wire
from sandbox.interrupts import Shield

# So long at a time a connection's frame waits for room.
TURN_SECONDS = 0.05


class ByteSink(Protocol):
    """Where frames go."""

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """Write some of ``data`` and answer how much; 0 when nothing could be written in time. Raises OSError."""

    def has_room(self, timeout_seconds: float) -> bool:
        """Whether much can be written, waiting for that so long. Raises OSError."""


class Carried(Protocol):
    """Connections whose bytes use the pipe too; called by its reader."""

    def takes(self, channel: int) -> bool:
        """Whether frames of that channel are of a connection."""

    def take(self, kind: int, channel: int, payload: bytes) -> None:
        """A frame of the guest. Raises WireError for what the protocol does not allow."""

    def cut(self, why: str) -> None:
        """The pipe ended: so do all connections."""


class FrameSender:
    """Numbers frames and writes them to ``sink``. May be used by many threads.

    A frame that was begun is finished by the next caller, so that a caller who gives up half-way, at its deadline or at a
    Ctrl-C, does not break the pipe for the others: signals wait until what was written is also noted. Connections' bytes
    (``flow``) let all else go first.
    """

    def __init__(self, sink: ByteSink, nonce: bytes) -> None:
        self._sink = sink
        self._nonce = nonce
        self._sequence = 0
        self._unsent = memoryview(b"")
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
                shield.let_in()
            self._sink.has_room(min(left, TURN_SECONDS))

    def reroute(self, change: Callable[[], object]) -> bool:
        """Let ``change`` send the sink another way, once the greeting is answered; False where more than that was sent already."""
        with self._lock:
            if self._sequence != 1 or self._unsent:
                return False
            change()
            return True

    def flow(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        """Send one frame of a connection, however long the pipe takes for it. Raises OSError.

        It waits for room with no lock held, so that other frames find what room there is.
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
        self._unsent = memoryview(wire.frame(self._nonce, self._sequence, kind, channel, payload))
        self._sequence += 1

    def _flush(self) -> bool:
        """Write what is unsent, as far as there is room for it now; whether all of it is written."""
        while self._unsent:
            sent = self._sink.send(self._unsent, 0)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]
        return True
