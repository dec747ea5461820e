"""The guest's end of the pipe: sends frames in fair turns, and never blocks the event loop."""

from __future__ import annotations

import fcntl
import os
import select

from ..builtin import Lock, deque
from ..protocol import wire
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


# Bytes that connections may have read and not sent: the pipe takes them in a few milliseconds, and they are the sandbox's memory.
FLOW_BYTES = 512 * 1024
# A pipe that is full of one long message gets this size, so that the host takes more at once. The kernel bounds those of a user.
F_SETPIPE_SZ, WIDE_BYTES, LONG_BYTES = 1031, 512 * 1024, 64 * 1024


class Link:
    """Send messages and frames from any thread.

    Frames that cannot be written at once wait in a queue. Long messages take turns frame by frame, so that a large reply does not
    delay a small one. The frames of connections (``flow``) have a queue of their own, which takes turns with the other one: they
    stay in order and delay nothing else. ``lost`` is set when the host is gone.

    Callers name a channel by ``key(channel)``, which belongs to the current host: frames to an earlier host's channels are dropped.
    """

    def __init__(self, reactor: Reactor, out_fd: int, nonce: bytes) -> None:
        self._reactor = reactor
        self._fd = out_fd
        self._nonce = nonce
        self._sequence = 0
        self._lock = Lock()
        self._queue: deque[Iterator[tuple[int, int, bytes | memoryview]]] = deque()
        self._flows: deque[tuple[int, int, bytes]] = deque()
        self._flow_bytes = 0
        self._flow_next = False
        self._awaiting_room: deque[Callable[[], None]] = deque()
        self._unsent = self._rest = memoryview(b"")  # of the frame being sent: the first piece, and what follows it
        self._watched = False
        self._epoch = 0
        self._farewells: dict[int, bytes] = {}
        self._next_fd: int | None = None
        self._wide_fd = -1  # the descriptor whose pipe was enlarged, or could not be
        self.lost = False
        os.set_blocking(out_fd, False)

    @property
    def fd(self) -> int:
        """The descriptor it writes to."""
        return self._fd

    def key(self, channel: int) -> int:
        """Return the key of a channel of the current host."""
        return self._epoch << 32 | channel

    def reaches(self, key: int) -> bool:
        """Return whether the channel belongs to the current host."""
        return key >> 32 == self._epoch

    def message(self, kind: int, key: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message; returns at once."""
        self.send_packed(kind, key, wire.pack_message(fields), blob)

    def send_packed(self, kind: int, key: int, data: bytes, blob: bytes = b"") -> None:
        """Send an encoded message with ``blob`` behind it; returns at once."""
        channel = key & 0xFFFFFFFF
        self._add(key, ((k, channel, p) for k, p in wire.split_message(kind, data, blob)))

    def frame(self, kind: int, key: int, payload: bytes | memoryview = b"") -> None:
        """Send one frame; returns at once."""
        self._add(key, iter(((kind, key & 0xFFFFFFFF, payload),)))

    def flow(self, kind: int, key: int, payload: bytes = b"") -> None:
        """Send one frame of a connection, after all earlier frames of connections; returns at once."""
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
        """Return whether a connection may read more for ``flow`` now; if not, ``call`` is called once when it may."""
        with self._lock:
            if self._flow_bytes < FLOW_BYTES or self.lost:
                return True
            self._awaiting_room.append(call)
            return False

    def reroute(self, out_fd: int) -> None:
        """Write to ``out_fd`` after the frame being sent and a ROUTE frame that announces it. Only in the reactor's thread."""
        os.set_blocking(out_fd, False)
        with self._lock:
            if not self.lost:
                announcement = wire.frame(self._nonce, self._sequence, wire.Kind.ROUTE, 0)
                self._sequence += 1
                self._unsent = memoryview(self._take_unsent() + announcement)
                self._next_fd = out_fd
                self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._reactor.hand_over(self._watch)

    def restart(self, nonce: bytes, answer: bytes, out_fd: int) -> None:
        """Serve another host on ``out_fd``: send it ``answer``, then its frames.

        The frame being sent is finished first, as the earlier host may still be listening and must see whole frames up to the
        answer; all other frames are dropped. Only in the reactor's thread.
        """
        with self._lock:
            self._clear()
            if out_fd != self._fd:
                self._leave(self._fd, self._take_unsent() + answer)
                self._unsent = memoryview(self._farewells.pop(out_fd, b""))
                self._reactor.unwatch(out_fd)
            if self._next_fd is not None:  # the earlier host will read from there, once it has read the rest
                self._leave(self._next_fd, answer)
                self._next_fd = None
            self._fd = out_fd
            self._unsent = memoryview(self._take_unsent() + answer)
            self._nonce, self._sequence = nonce, 0
            self._epoch += 1
            self.lost = False
            self._pump()
            waiting = self._is_waiting()
        if waiting:
            self._watch()

    def _take_unsent(self) -> bytes:
        """Return what is left of the frame being sent, and forget it; the lock is held."""
        unsent = bytes(self._unsent) + bytes(self._rest)
        self._unsent = self._rest = memoryview(b"")
        return unsent

    def _leave(self, fd: int, farewell: bytes) -> None:
        """Stop serving the host at ``fd``. It learns from ``farewell``, once it reads again, that it has lost the sandbox."""
        if self._watched and fd == self._fd:
            self._reactor.unwatch(fd)
            self._watched = False
        if fd >= 0:
            self._farewells[fd] = farewell
            self._reactor.watch(fd, select.EPOLLOUT, lambda _: self._send_farewell(fd))

    def _send_farewell(self, fd: int) -> None:
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
        """Forget ``out_fd``: its other end is closed."""
        with self._lock:
            if self._farewells.pop(out_fd, None) is not None or (out_fd == self._fd and self._watched):
                self._reactor.unwatch(out_fd)
            if out_fd == self._wide_fd:  # another pipe may get the number
                self._wide_fd = -1
            if out_fd == self._fd:
                self._fd, self._watched, self.lost = -1, False, True
                self._clear()
            elif out_fd == self._next_fd:  # what is being sent on the old pipe is finished for the next host
                self._next_fd, self.lost = None, True
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
        """Return whether the pipe is full and must be watched from now on; the lock is held."""
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
                if not self._watched:  # the new pipe was taken, and is full too
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
                self._take_next_fd()
                head = self._next()
                if head is None:
                    return
                kind, channel, payload = head
                self._unsent, self._rest = wire.frame_pieces(self._nonce, self._sequence, kind, channel, payload)
                self._sequence += 1
            try:
                sent = os.write(self._fd, self._unsent)
            except BlockingIOError:
                if not self._widen():
                    return
                continue
            except OSError:
                self.lost = True
                self._clear()
                return
            self._unsent = self._unsent[sent:]
            if not self._unsent:
                self._unsent, self._rest = self._rest, self._unsent

    def _widen(self) -> bool:
        """Enlarge the full pipe if much is to be sent. Returns whether there may be room now; the lock is held."""
        if self._wide_fd == self._fd or len(self._unsent) + len(self._rest) < LONG_BYTES:
            return False
        self._wide_fd = self._fd
        try:
            fcntl.fcntl(self._fd, F_SETPIPE_SZ, WIDE_BYTES)
        except OSError:  # no pipe, or the user's share of pipe memory is used up
            return False
        return True

    def _take_next_fd(self) -> None:
        """Change to the new pipe, if there is one; the lock is held, and no frame is being sent."""
        if self._next_fd is not None:
            if self._watched:  # the new one is watched if it is full
                self._reactor.unwatch(self._fd)
                self._watched = False
            self._fd, self._next_fd = self._next_fd, None

    def _next(self) -> tuple[int, int, bytes | memoryview] | None:
        """Return the next frame, from either queue in turn; the lock is held."""
        self._flow_next = not self._flow_next
        if self._flows and (self._flow_next or not self._queue):
            flow = self._flows.popleft()
            self._flow_bytes -= len(flow[2])
            self._announce_room()
            return flow
        while self._queue:
            frames = self._queue.popleft()
            head = next(frames, None)
            if head is not None:
                self._queue.append(frames)
                return head
        return self._next() if self._flows else None

    def _announce_room(self) -> None:
        """Let the connection that waited longest read on if there is room, or all if nothing waits; the lock is held."""
        if self._flow_bytes < FLOW_BYTES:
            for _ in range(min(1, len(self._awaiting_room)) if self._flows else len(self._awaiting_room)):
                self._reactor.hand_over(self._awaiting_room.popleft())

    def _clear(self) -> None:
        self._queue.clear()
        self._flows.clear()
        self._flow_bytes = 0
        while self._awaiting_room:
            self._reactor.hand_over(self._awaiting_room.popleft())
