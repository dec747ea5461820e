"""The guest's end of the pipe: frames out in fair turns, never blocking the event loop."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

from ..protocol import wire
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


# What connections may have read and not sent: the pipe takes it in a few milliseconds, and it is memory of the sandbox.
FLOW_BYTES = 512 * 1024


class Link:
    """Sends messages and frames from any thread.

    What cannot be written at once waits in a queue; long messages take turns frame by frame, so that a large reply does not
    hold up a small one. Connections' bytes (``flow``) wait in a queue of their own, which takes turns with the other: they come in
    order, and hold nothing up. ``lost`` is set when the host is gone.

    Everybody names a channel by ``key(channel)``, which belongs to the host of the time: what is sent to the channels of an
    earlier host goes nowhere.
    """

    def __init__(self, reactor: Reactor, out_fd: int, nonce: bytes) -> None:
        self._reactor = reactor
        self._fd = out_fd
        self._nonce = nonce
        self._sequence = 0
        self._lock = threading.Lock()
        self._queue: deque[Iterator[tuple[int, int, bytes | memoryview]]] = deque()
        self._flows: deque[tuple[int, int, bytes]] = deque()
        self._flow_bytes = 0
        self._flow_next = False
        self._thirsty: deque[Callable[[], None]] = deque()
        self._unsent = memoryview(b"")
        self._watched = False
        self._epoch = 0
        self._farewells: dict[int, bytes] = {}
        self._next_fd: int | None = None
        self.lost = False
        os.set_blocking(out_fd, False)

    @property
    def fd(self) -> int:
        """Where it writes to."""
        return self._fd

    def key(self, channel: int) -> int:
        """The key of a channel of the present host."""
        return self._epoch << 32 | channel

    def reaches(self, key: int) -> bool:
        """Whether the channel belongs to the present host."""
        return key >> 32 == self._epoch

    def message(self, kind: int, key: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message; returns at once."""
        self.packed(kind, key, wire.pack_message(fields, blob))

    def packed(self, kind: int, key: int, data: bytes) -> None:
        """Send a message that was packed already; returns at once."""
        channel = key & 0xFFFFFFFF
        self._add(key, ((k, channel, p) for k, p in wire.split_message(kind, data)))

    def frame(self, kind: int, key: int, payload: bytes | memoryview = b"") -> None:
        """Send one frame; returns at once."""
        self._add(key, iter(((kind, key & 0xFFFFFFFF, payload),)))

    def flow(self, kind: int, key: int, payload: bytes = b"") -> None:
        """Send one frame of a connection, behind all others of connections; returns at once."""
        with self._lock:
            if self.lost or not self.reaches(key):
                return
            self._flows.append((kind, key & 0xFFFFFFFF, payload))
            self._flow_bytes += len(payload)
            self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._reactor.hand_over(self._watch)

    def has_room(self, call: Callable[[], None]) -> bool:
        """Whether a connection may read more for ``flow`` now; where not, ``call`` is called once, when it may."""
        with self._lock:
            if self._flow_bytes < FLOW_BYTES or self.lost:
                return True
            self._thirsty.append(call)
            return False

    def reroute(self, out_fd: int) -> None:
        """Write to ``out_fd`` behind the frame under way and one that says so. Only in the reactor's thread."""
        os.set_blocking(out_fd, False)
        with self._lock:
            if not self.lost:
                said = wire.frame(self._nonce, self._sequence, wire.Kind.ROUTE, 0)
                self._sequence += 1
                self._unsent = memoryview(bytes(self._unsent) + said)
                self._next_fd = out_fd
                self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._reactor.hand_over(self._watch)

    def restart(self, nonce: bytes, answer: bytes, out_fd: int) -> None:
        """Serve another host from now on, on ``out_fd``: ``answer`` stands between the last frame before and the first to it.

        The frame under way is finished, for the earlier host may still be listening and is to see whole frames up to the answer;
        all others are dropped. Only in the reactor's thread.
        """
        with self._lock:
            self._clear()
            if out_fd != self._fd:
                self._part_from(self._fd, bytes(self._unsent) + answer)
                self._unsent = memoryview(self._farewells.pop(out_fd, b""))
                self._reactor.unwatch(out_fd)
            self._fd = out_fd
            self._unsent = memoryview(bytes(self._unsent) + answer)
            self._nonce, self._sequence = nonce, 0
            self._epoch += 1
            self.lost = False
            self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._watch()

    def _part_from(self, fd: int, farewell: bytes) -> None:
        """The host at ``fd`` is told by ``farewell`` that it has lost the sandbox, when it reads again."""
        if self._watched:
            self._reactor.unwatch(fd)
            self._watched = False
        if fd >= 0:
            self._farewells[fd] = farewell
            self._reactor.watch(fd, select.EPOLLOUT, lambda _: self._say_farewell(fd))

    def _say_farewell(self, fd: int) -> None:
        farewell = self._farewells.get(fd, b"")
        try:
            farewell = farewell[os.write(fd, farewell) :]
        except BlockingIOError:
            return
        except OSError:
            farewell = b""
        self._farewells[fd] = farewell
        if not farewell:
            del self._farewells[fd]
            self._reactor.unwatch(fd)

    def hang_up(self, out_fd: int) -> None:
        """Nobody is at the other end of ``out_fd`` any more."""
        with self._lock:
            if self._farewells.pop(out_fd, None) is not None or (out_fd == self._fd and self._watched):
                self._reactor.unwatch(out_fd)
            if out_fd == self._fd:
                self._fd, self._watched, self.lost = -1, False, True
                self._clear()

    def _add(self, key: int, frames: Iterator[tuple[int, int, bytes | memoryview]]) -> None:
        with self._lock:
            if self.lost or not self.reaches(key):
                return
            self._queue.append(frames)
            self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._reactor.hand_over(self._watch)

    def _is_waiting(self) -> bool:
        """Whether the pipe is full and nobody watches it yet; the lock is held."""
        waiting = bool(self._unsent) and not self._watched and not self.lost
        self._watched = self._watched or waiting
        return waiting

    def _watch(self) -> None:
        with self._lock:
            if self._watched and not self.lost:
                self._reactor.watch(self._fd, select.EPOLLOUT, self._writable)

    def _writable(self, _: int) -> None:
        with self._lock:
            self._pump()
            if self._unsent and not self.lost:
                if not self._watched:  # another way was taken, and is full too
                    self._watched = True
                    self._reactor.watch(self._fd, select.EPOLLOUT, self._writable)
                return
            if self._watched:
                self._watched = False
                self._reactor.unwatch(self._fd)

    def _pump(self) -> None:
        """Write until the pipe is full or nothing is left; the lock is held."""
        while not self.lost:
            if not self._unsent:
                self._turn()
                head = self._next()
                if head is None:
                    return
                kind, channel, payload = head
                self._unsent = memoryview(wire.frame(self._nonce, self._sequence, kind, channel, payload))
                self._sequence += 1
            try:
                sent = os.write(self._fd, self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self.lost = True
                self._clear()
                return
            self._unsent = self._unsent[sent:]

    def _turn(self) -> None:
        """Take the new way, if there is one; the lock is held, and nothing is under way."""
        if self._next_fd is not None:
            if self._watched:  # it is watched again where it is full
                self._reactor.unwatch(self._fd)
                self._watched = False
            self._fd, self._next_fd = self._next_fd, None

    def _next(self) -> tuple[int, int, bytes | memoryview] | None:
        """The next frame, in turns of the two queues; the lock is held."""
        self._flow_next = not self._flow_next
        if self._flows and (self._flow_next or not self._queue):
            flow = self._flows.popleft()
            self._flow_bytes -= len(flow[2])
            self._quench()
            return flow
        while self._queue:
            frames = self._queue.popleft()
            head = next(frames, None)
            if head is not None:
                self._queue.append(frames)
                return head
        return self._next() if self._flows else None

    def _quench(self) -> None:
        """Let the connections that waited longest read on where there is room; the lock is held."""
        if self._flow_bytes < FLOW_BYTES:
            for _ in range(min(1, len(self._thirsty)) if self._flows else len(self._thirsty)):
                self._reactor.hand_over(self._thirsty.popleft())

    def _clear(self) -> None:
        self._queue.clear()
        self._flows.clear()
        self._flow_bytes = 0
        while self._thirsty:
            self._reactor.hand_over(self._thirsty.popleft())
