"""Threads that carry out file operations; each of them acts on files as the sandbox's user all the time."""

from __future__ import annotations

import sys
import threading
from functools import partial
from queue import SimpleQueue

from .. import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READY_AT_START = 2


class Workers:
    """A pool that grows to ``limit`` threads. If no thread can be started, jobs wait for the existing ones."""

    def __init__(self, limit: int, user: tuple[int, int] | None) -> None:
        self._limit = limit
        self._user = user
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = self._working = 0
        self._threads = 0
        self._lock = threading.Lock()
        for _ in range(READY_AT_START):
            self._grow()

    def submit(self, job: Callable[[], None], *, watching: bool = False) -> None:
        """Call ``job`` in a worker; it must not raise. ``watching`` says that it does not count as work (see ``busy``)."""
        with self._lock:
            needs_thread = self._idle <= self._jobs.qsize() and self._threads < self._limit
            self._working += not watching
        if needs_thread:
            self._grow()
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
            self._threads += 1
        except RuntimeError as error:  # no more pids: the existing threads have to suffice
            print(f"no further worker: {error}", file=sys.stderr)

    def _work(self) -> None:
        if self._user is not None:
            kernel.act_on_files_as(*self._user)
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
            try:
                job()
            except Exception as error:  # a thread that ended here would never be replaced
                sys.excepthook(type(error), error, error.__traceback__)
