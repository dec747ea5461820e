"""Stopping commands for good, in a thread of its own that was started ahead of time: pids may be used up when it is needed."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from queue import SimpleQueue

from ..loop.reactor import Reactor
from ..watch import process_tree as proctree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Report = Callable[[int, int, tuple[str, ...]], None]

# A kill of everything is atomic, but a fork that was under way shows up a moment later (seen: 199 ms at half a cpu).
EVERYTHING_SECONDS = 1.0
# For processes that were killed and are not gone yet. A command's answer is awaited for 2 s after its deadline.
PATIENCE_SECONDS = 1.2


class Killer:
    """Kills trees of processes one after the other and reports in the reactor's thread.

    ``everything`` says whether the last resort, a SIGKILL to every other process, is there: only as PID 1 of a sandbox.
    ``before`` and ``after`` are called around it; what ``before`` answers, the commands that are hit, goes into the report.
    """

    def __init__(self, reactor: Reactor, before: Callable[[], tuple[str, ...]], after: Callable[[], None]) -> None:
        self.everything = os.getpid() == 1
        self._reactor = reactor
        self._before = before
        self._after = after
        self._jobs: SimpleQueue[tuple[int, Report, Collection[int]]] = SimpleQueue()
        threading.Thread(target=self._work, name="killer", daemon=True).start()

    def kill(self, root: int, report: Report, kept: Collection[int] = ()) -> None:
        """Kill all below ``root`` but ``kept`` and what is below those, then call ``report(killed, survivors, hit)``."""
        self._jobs.put((root, report, kept))

    def _work(self) -> None:
        while True:
            root, report, kept = self._jobs.get()
            killed, alive = proctree.kill_below(root, kept=kept)
            hit: tuple[str, ...] = ()
            left = proctree.outlast(root, killed, PATIENCE_SECONDS, kept) if alive else set()
            alive = alive if left is None else left
            if left is None and self.everything:
                hit = self._before()
                alive = _kill_everything()
                self._reactor.hand_over(self._after)
            self._reactor.hand_over(partial(report, len(killed), len(alive), hit))


def _kill_everything() -> set[int]:
    deadline = time.monotonic() + EVERYTHING_SECONDS
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return set()
        time.sleep(0.002)
        alive = set(proctree.parents()) - {os.getpid()}
        if not alive or time.monotonic() > deadline:
            return alive
