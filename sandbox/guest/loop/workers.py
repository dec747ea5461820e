"""Threads that carry out file operations; each of them acts on files as the sandbox's user all the time."""

from __future__ import annotations

import sys
import threading
from functools import partial
from queue import Empty, SimpleQueue

from .. import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READY_AT_START = 2
# Threads count among the processes that the sandbox may have: those that a burst of jobs needed end again.
IDLE_SECONDS = 2.0


class Workers:
    """A pool of two threads that grows to ``limit`` while there is work, and shrinks again.

    If no thread can be started, jobs wait for the existing ones.
    """

    def __init__(self, limit: int, user: tuple[int, int] | None) -> None:
        self._limit = limit
        self._user = user
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Threads that have no job, less the jobs that have no thread.
        self._spare = 0
        self._working = self._threads = 0
        self._lock = threading.Lock()
        for _ in range(READY_AT_START):
            self._grow()

    def submit(self, job: Callable[[], None], *, watching: bool = False) -> None:
        """Call ``job`` in a worker; it must not raise. ``watching`` says that it does not count as work (see ``busy``)."""
        with self._lock:
            if self._spare <= 0 and self._threads < self._limit:
                self._grow()
            self._spare -= 1
            self._working += not watching
        self._jobs.put(job if watching else partial(self._carry_out, job))

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
            threading.Thread(target=self._work, name="worker", daemon=True).start()
        except RuntimeError as error:  # no more pids: the existing threads have to suffice
            print(f"no further worker: {error}", file=sys.stderr)
        else:
            self._threads += 1
            self._spare += 1

    def _work(self) -> None:
        if self._user is not None:
            kernel.act_on_files_as(*self._user)
        while (job := self._next_job()) is not None:
            try:
                job()
            except Exception as error:  # a thread that ended here would never be replaced
                sys.excepthook(type(error), error, error.__traceback__)
            with self._lock:
                self._spare += 1

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for a job. Returns None if there was none for a while and the thread is not needed any more."""
        while True:
            try:
                return self._jobs.get(timeout=IDLE_SECONDS if self._threads > READY_AT_START else None)
            except Empty:
                with self._lock:
                    if self._spare > 0 and self._threads > READY_AT_START:
                        self._threads -= 1
                        self._spare -= 1
                        return None
