"""The guest's end of the pipe: frames out in fair turns, never blocking the event loop."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

from . import wire
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Link:
    """Sends messages and frames from any thread.

    What cannot be written at once waits in a queue; long messages take turns frame by frame, so that a large reply does not
    hold up a small one. ``lost`` is set when the host is gone.
    """

    def __init__(self, reactor: Reactor, out_fd: int, nonce: bytes) -> None:
        self._reactor = reactor
        self._fd = out_fd
        self._nonce = nonce
        self._sequence = 0
        self._lock = threading.Lock()
        self._queue: deque[Iterator[tuple[int, int, bytes | memoryview]]] = deque()
        self._unsent = memoryview(b"")
        self._watched = False
        self.lost = False
        os.set_blocking(out_fd, False)

    def message(self, kind: int, channel: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message; returns at once."""
        data = wire.pack_message(fields, blob)
        self._add((k, channel, p) for k, p in wire.split_message(kind, data))

    def frame(self, kind: int, channel: int, payload: bytes | memoryview = b"") -> None:
        """Send one frame; returns at once."""
        self._add(iter(((kind, channel, payload),)))

    def _add(self, frames: Iterator[tuple[int, int, bytes | memoryview]]) -> None:
        with self._lock:
            if self.lost:
                return
            self._queue.append(frames)
            self._pump()
            waiting = bool(self._unsent) and not self._watched
            self._watched = self._watched or waiting
        if waiting:
            self._reactor.hand_over(self._watch)

    def _watch(self) -> None:
        self._reactor.watch(self._fd, select.EPOLLOUT, self._writable)

    def _writable(self, _: int) -> None:
        with self._lock:
            self._pump()
            if self._unsent and not self.lost:
                return
            self._watched = False
        self._reactor.unwatch(self._fd)

    def _pump(self) -> None:
        """Write until the pipe is full or nothing is left; the lock is held."""
        while not self.lost:
            if not self._unsent:
                if not self._queue:
                    return
                frames = self._queue.popleft()
                head = next(frames, None)
                if head is None:
                    continue
                kind, channel, payload = head
                self._unsent = memoryview(wire.frame(self._nonce, self._sequence, kind, channel, payload))
                self._sequence += 1
                self._queue.append(frames)
            try:
                sent = os.write(self._fd, self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self.lost = True
                self._queue.clear()
                return
            self._unsent = self._unsent[sent:]
