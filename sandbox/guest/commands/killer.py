"""Kill process trees for good: by scans of /proc, and as PID 1 in the end by a kill of everything.

The work is done by a thread that is started ahead of time: the pids may be used up when it is needed.
"""

from __future__ import annotations

import os
import time

from ..builtin import SimpleQueue, partial, signal, start_thread
from ..loop.reactor import Reactor
from ..watch.procfs import find_descendants, read_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Report = Callable[[int, int, tuple[str, ...]], None]

# A process that never stops forking can outrun a scan; after this time the caller has to escalate (measured: 200 ms catches every
# evader but a fork storm).
KILL_SECONDS = 0.2
# A kill of everything is atomic, but a fork that was under way shows up a moment later (measured: 199 ms at half a cpu).
EVERYTHING_SECONDS = 1.0
# For processes that were killed and are not gone yet. The host waits for a command's answer until 2 s after its deadline.
PATIENCE_SECONDS = 1.2


class Killer:
    """Kills process trees one after the other and reports in the reactor's thread.

    ``can_kill_everything`` is true only for PID 1 of a sandbox: then a SIGKILL to every other process is the last resort.
    ``before`` and ``after`` are called around that; ``before`` returns the ids of the commands it hits, for the report.
    """

    def __init__(self, reactor: Reactor, before: Callable[[], tuple[str, ...]], after: Callable[[], None]) -> None:
        self.can_kill_everything = os.getpid() == 1
        self._reactor = reactor
        self._before = before
        self._after = after
        self._jobs: SimpleQueue[tuple[int, Report, Collection[int]]] = SimpleQueue()
        start_thread(self._work, ())

    def kill(self, root: int, report: Report, excluded: Collection[int] = ()) -> None:
        """Kill everything below ``root`` except the trees of ``excluded``, then call ``report(killed, survivors, hit)``."""
        self._jobs.put((root, report, excluded))

    def _work(self) -> None:
        while True:
            root, report, excluded = self._jobs.get()
            killed, alive = kill_below(root, excluded=excluded)
            hit: tuple[str, ...] = ()
            left = wait_until_gone(root, killed, PATIENCE_SECONDS, excluded) if alive else set()
            alive = alive if left is None else left
            if left is None and self.can_kill_everything:
                hit = self._before()
                alive = _kill_everything()
                self._reactor.hand_over(self._after)
            self._reactor.hand_over(partial(report, len(killed), len(alive), hit))


def kill_below(root: int, seconds: float = KILL_SECONDS, excluded: Collection[int] = ()) -> tuple[set[int], set[int]]:
    """SIGKILL everything below ``root`` except the trees of ``excluded``, until two scans in a row find nothing.

    Gives up after ``seconds``. Returns (killed, survivors). ``root`` must be the sub-reaper of its tree, so that orphans stay
    below it.
    """
    deadline = time.monotonic() + seconds
    killed: set[int] = set()
    quiet_scans = 0
    while True:
        alive = find_descendants(root, excluded)
        for pid in alive:  # the leader first: a shell must not live to comment on the death of its children
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone, or not ours to kill: the next scan shows which
                pass
        killed.update(alive)
        quiet_scans = 0 if alive else quiet_scans + 1
        if quiet_scans == 2 or time.monotonic() > deadline:
            return killed, set(alive)
        if alive:
            time.sleep(0.001)


def wait_until_gone(
    root: int, killed: Collection[int], seconds: float, excluded: Collection[int] = ()
) -> set[int] | None:
    """Wait up to ``seconds`` until the ``killed`` processes below ``root`` are gone; return those that are still there.

    Returns None as soon as a process appears that was not killed yet: the tree goes on forking. On a busy machine a killed process
    waits for a processor to die on (measured: more than 0.2 s at 13 runnable processes per processor), and no harder kill would be
    faster.
    """
    deadline = time.monotonic() + seconds
    quiet_scans = 0
    while True:
        alive = set(find_descendants(root, excluded))
        if not alive <= set(killed):
            return None
        quiet_scans = 0 if alive else quiet_scans + 1
        if quiet_scans == 2 or time.monotonic() > deadline:
            return alive
        time.sleep(0.002)


def signal_tree(root: int, name: str) -> int:
    """Send the signal ``name`` to every process below ``root``. Returns how many processes got it."""
    reached = 0
    for pid in find_descendants(root):
        try:
            os.kill(pid, getattr(signal, name))
            reached += 1
        except OSError:  # gone meanwhile
            pass
    return reached


def _kill_everything() -> set[int]:
    deadline = time.monotonic() + EVERYTHING_SECONDS
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return set()
        time.sleep(0.002)
        alive = set(read_parents()) - {os.getpid()}
        if not alive or time.monotonic() > deadline:
            return alive
