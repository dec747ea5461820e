"""Threads that carry out file operations; each of them acts on files as the sandbox's user all the time."""

from __future__ import annotations

import sys

from .. import kernel
from ..builtin import Lock, deque, partial, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READY_AT_START = 2
# Threads count among the processes that the sandbox may have: those that a burst of jobs needed end again.
IDLE_SECONDS = 2.0


class _Worker:
    """A thread that waits for ``bell``, and then for nothing: ``job`` is its own."""

    __slots__ = ("bell", "job")

    def __init__(self) -> None:
        self.bell = Lock()
        self.bell.acquire()
        self.job: Callable[[], None] | None = None


class Workers:
    """A pool of two threads that grows to ``limit`` while there is work, and shrinks again.

    If no thread can be started, jobs wait for the existing ones. A job wakes one thread, the one that worked last: where several
    wait for one queue, two wake, and contend with the reactor.
    """

    def __init__(self, limit: int, user: tuple[int, int] | None) -> None:
        self._limit = limit
        self._user = user
        self._jobs: deque[Callable[[], None]] = deque()  # that have no thread
        self._idle: list[_Worker] = []
        self._working = self._threads = 0
        self._lock = Lock()
        for _ in range(READY_AT_START):
            self._grow()

    def submit(self, job: Callable[[], None], *, watching: bool = False) -> None:
        """Call ``job`` in a worker; it must not raise. ``watching`` says that it does not count as work (see ``busy``)."""
        job = job if watching else partial(self._carry_out, job)
        with self._lock:
            self._working += not watching
            if self._idle:
                worker = self._idle.pop()
                worker.job = job
                worker.bell.release()
                return
            self._jobs.append(job)
            if self._threads < self._limit:
                self._grow()

    def _carry_out(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            with self._lock:
                self._working -= 1

    def busy(self) -> bool:
        """Return whether a job that counts as work is running or waits."""
        return self._working > 0

    def _grow(self) -> None:
        try:
            start_thread(self._work, ())
        except RuntimeError as error:  # no more pids: the existing threads have to suffice
            print(f"no further worker: {error}", file=sys.stderr)
        else:
            self._threads += 1

    def _work(self) -> None:
        if self._user is not None:
            kernel.act_on_files_as(*self._user)
        worker = _Worker()
        while (job := self._next_job(worker)) is not None:
            try:
                job()
            except Exception as error:  # a thread that ended here would never be replaced
                sys.excepthook(type(error), error, error.__traceback__)

    def _next_job(self, worker: _Worker) -> Callable[[], None] | None:
        """Wait for a job. Returns None if there was none for a while and the thread is not needed any more."""
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle.append(worker)
        while not worker.bell.acquire(timeout=IDLE_SECONDS if self._threads > READY_AT_START else -1):
            with self._lock:
                if worker in self._idle and self._threads > READY_AT_START:  # else it has a job, or is one of the first
                    self._idle.remove(worker)
                    self._threads -= 1
                    return None
        return worker.job
