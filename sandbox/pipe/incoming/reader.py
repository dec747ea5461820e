"""One thread that reads the pipes of all sandboxes of this process.

It starts with the first pipe and ends with the last. A pipe is read by this thread, or by a caller that waits for an answer, which
saves the hand-over from this thread. A descriptor is reported once, and again after ``arm``, so that nobody is woken for a pipe
that another thread reads.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from typing import Protocol

from sandbox.interrupts import Shield

log = logging.getLogger(__name__)

_ARMED = select.EPOLLIN | select.EPOLLONESHOT
_MOST_EVENTS = 64


class Watched(Protocol):
    """A pipe. Its methods are called in the reader's thread and must not block."""

    def descriptors(self) -> tuple[int, ...]:
        """Return what to watch; bytes come on the first."""

    def read(self) -> None:
        """Read what has come, if nobody else does, and ``arm`` the pipe again unless it has ended."""

    def tick(self, now: float) -> float:
        """Do what is due at ``now`` (monotonic); return when to call this again."""


class PipeReader:
    """Watches pipes in one daemon thread. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()  # the thread's own calls come back here
        self._pipes: set[Watched] = set()
        self._watched: dict[int, Watched] = {}
        self._armed: dict[int, bool] = {}
        self._due: list[tuple[float, int, Watched]] = []
        self._count = itertools.count()
        self._epoll: select.epoll | None = None
        self._wake = -1

    def add(self, pipe: Watched, due: float) -> None:
        """Watch ``pipe`` from now on, and call its ``tick`` at ``due``. Raises OSError if there is no descriptor left."""
        with Shield(), self._lock:
            if self._epoll is None:
                self._begin()
            self._pipes.add(pipe)
            heapq.heappush(self._due, (due, next(self._count), pipe))
            self._nudge()
            self.arm(pipe)

    def arm(self, pipe: Watched) -> None:
        """Report the next bytes of ``pipe``, which may have come already."""
        for fd in pipe.descriptors():
            if not self._armed.get(fd) or self._watched.get(fd) is not pipe:
                self._arm(pipe, fd)

    def _arm(self, pipe: Watched, fd: int) -> None:
        if self._watched.get(fd) is pipe and (epoll := self._epoll) is not None:
            self._armed[fd] = True
            try:
                epoll.modify(fd, _ARMED)
                return
            except FileNotFoundError:  # another file has this number now
                pass
            except (OSError, ValueError):  # closed meanwhile
                return
        with self._lock:
            if self._epoll is not None and pipe in self._pipes and fd >= 0:
                self._watched[fd], self._armed[fd] = pipe, True
                try:
                    self._epoll.register(fd, _ARMED)
                except FileExistsError:
                    self._epoll.modify(fd, _ARMED)

    def disarm(self, pipe: Watched) -> None:
        """Do not report the bytes of ``pipe``: the caller reads them."""
        fd = pipe.descriptors()[0]
        if self._armed.get(fd) and self._watched.get(fd) is pipe and (epoll := self._epoll) is not None:
            self._armed[fd] = False
            try:
                epoll.modify(fd, select.EPOLLONESHOT)
            except (OSError, ValueError):  # closed meanwhile
                pass

    def remove(self, pipe: Watched) -> None:
        """Watch ``pipe`` no more. Its descriptors may be closed afterwards."""
        with Shield(), self._lock:
            self._pipes.discard(pipe)
            for fd in [fd for fd, each in self._watched.items() if each is pipe]:
                del self._watched[fd], self._armed[fd]
                if self._epoll is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(fd)
            self._due = [each for each in self._due if each[2] is not pipe]
            heapq.heapify(self._due)
            if not self._pipes:
                self._nudge()

    def _begin(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            epoll = select.epoll()
        except OSError:
            os.close(self._wake)
            raise
        epoll.register(self._wake, select.EPOLLIN)
        self._epoll = epoll
        try:
            threading.Thread(target=self._run, args=(epoll, self._wake), name="gamebox-reader", daemon=True).start()
        except BaseException:
            self._end(epoll, self._wake)
            raise

    def _end(self, epoll: select.epoll, wake: int) -> None:
        self._epoll = None
        epoll.close()
        os.close(wake)

    def _nudge(self) -> None:
        if self._epoll is not None:
            os.eventfd_write(self._wake, 1)

    def _run(self, epoll: select.epoll, wake: int) -> None:
        while True:
            with self._lock:
                if not self._pipes:
                    self._end(epoll, wake)
                    return
                left = self._due[0][0] - time.monotonic() if self._due else None
            for fd, _ in epoll.poll(None if left is None else max(0.0, left), _MOST_EVENTS):
                if fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(wake)
                elif (pipe := self._watched.get(fd)) is not None:
                    self._armed[fd] = False
                    try:
                        pipe.read()
                    except Exception:  # of one pipe: the others go on
                        log.exception("the pipe of a sandbox could not be read")
            self._call_due(time.monotonic())

    def _call_due(self, now: float) -> None:
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > now:
                    return
                _, _, pipe = self._due[0]
            try:
                again = pipe.tick(now)
            except Exception:
                log.exception("a timer of a sandbox's pipe failed")
                again = now + 1.0
            with self._lock:
                at = next((at for at, each in enumerate(self._due) if each[2] is pipe), None)
                if at is not None:  # not removed meanwhile
                    self._due[at] = (again, next(self._count), pipe)
                    heapq.heapify(self._due)

    def forget_in_child(self) -> None:
        """Begin anew in a forked process. The kernel's list of descriptors is the parent's, too, and must not be changed."""
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._wake)
        self._reset()


_reader = PipeReader()
os.register_at_fork(after_in_child=lambda: _reader.forget_in_child())


def pipe_reader() -> PipeReader:
    """Return the reader of this process."""
    return _reader
