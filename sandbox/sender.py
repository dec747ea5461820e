"""Frames out to a guest: whole and in order whoever sends them, and never past the caller's deadline."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from .guest import wire


class ByteSink(Protocol):
    """Where frames go."""

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """Write some of ``data`` and answer how much; 0 when nothing could be written in time. Raises OSError."""


class FrameSender:
    """Numbers frames and writes them to ``sink``. May be used by many threads.

    A frame that was begun is finished by whoever sends next, so that a caller who gives up half-way, at its deadline or at a
    Ctrl-C, does not break the pipe for the others.
    """

    def __init__(self, sink: ByteSink, nonce: bytes) -> None:
        self._sink = sink
        self._nonce = nonce
        self._sequence = 0
        self._unsent = memoryview(b"")
        self._lock = threading.Lock()

    def send(self, kind: int, channel: int, payload: bytes | memoryview, deadline: float) -> bool:
        """Send one frame; False where the pipe did not take all of it by ``deadline`` (monotonic). Raises OSError."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            if not self._flush(deadline):
                return False
            self._unsent = memoryview(wire.frame(self._nonce, self._sequence, kind, channel, payload))
            self._sequence += 1
            return self._flush(deadline)
        finally:
            self._lock.release()

    def _flush(self, deadline: float) -> bool:
        while self._unsent:
            sent = self._sink.send(self._unsent, max(0.0, deadline - time.monotonic()))
            if not sent:
                return False
            self._unsent = self._unsent[sent:]
        return True
