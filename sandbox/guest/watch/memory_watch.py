"""Remember the largest processes, to name the one that the kernel killed for memory.

The kernel counts its kills inside a sandbox but does not name the victims, so the largest processes are noted before. The more
memory is free, the rarer are the looks; there are none while no command runs. Lives in the reactor's thread.
"""

from __future__ import annotations

import os
import time

from ..loop.reactor import Reactor, Timer
from .cgroup import Cgroup
from .procfs import Stat, read_all_stats, read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# Neither memory nor files fill faster than this (measured: a process that touches new pages gets 2 to 4 GiB a second).
FILLS_PER_SECOND = 4 << 30
LEAST_SECONDS, MOST_SECONDS = 0.01, 1.0
# The share of time that looks may take, except that no pause is longer than LONGEST_PAUSE. It is larger if memory grew by more
# than FAST of the limit since the last look.
SHARE, SHARE_WHILE_IT_FILLS, FAST = 0.02, 0.5, 1 / 64
LONGEST_PAUSE = 0.2
# Processes are noted once memory is this full.
FULL_ENOUGH = 0.3
# What only saves time is ended once memory is this full.
NEARLY_FULL = 0.75
MOST_SEEN, MOST_SUSPECTS = 8, 32


class Sighting:
    """One process as it was at the monotonic time ``at``. ``ancestors`` are pids, the closest first."""

    __slots__ = ("ancestors", "at", "bytes", "name", "pid", "started")

    def __init__(self, pid: int, stat: Stat, ancestors: tuple[int, ...]) -> None:
        self.at = time.monotonic()
        self.pid = pid
        self.name = stat.name
        self.bytes = stat.memory
        self.started = stat.started
        self.ancestors = ancestors


class MemoryWatch:
    """Remembers the largest processes of the last look. ``is_needed`` returns whether any command has processes.

    ``on_nearly_full`` is called when a look finds memory nearly full.
    """

    def __init__(self, reactor: Reactor, cgroup: Cgroup, limit: int, is_needed: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._cgroup = cgroup
        self._limit = limit
        self._is_needed = is_needed
        self.on_nearly_full: Callable[[], None] = lambda: None
        self._timer: Timer | None = None
        self._largest: list[Sighting] = []
        # Of the look before: a process may be killed in a look, after the kills are read and before the processes are.
        self._largest_before: list[Sighting] = []
        self._suspects: list[Sighting] = []
        self._kills = self._used_before = 0
        self._off = cgroup.memory_used() is None

    def wake(self) -> None:
        """Start looking, because a command starts. Looks end by themselves."""
        if self._timer is None and not self._off:
            self._used_before = self._cgroup.memory_used() or 0
            self._timer = self._reactor.after(self._pause(self._used_before), self._look)

    def is_nearly_full(self) -> bool:
        """Return whether the sandbox is short of memory."""
        return (self._cgroup.memory_needed() or 0) > self._limit * NEARLY_FULL

    def find_victim(self, runner: int, since: float) -> Sighting | None:
        """Return the largest process below ``runner`` that was alive after ``since`` and is gone now; None if there is none."""
        all_seen = (*self._suspects, *self._largest, *self._largest_before)
        known = [seen for seen in all_seen if runner in seen.ancestors and seen.at >= since]
        gone = [seen for seen in known if not _is_alive(seen)]
        return max(gone, key=lambda seen: seen.bytes) if gone else None

    def _look(self) -> None:
        if not self._is_needed():
            self._timer = None
            return
        began = time.monotonic()
        kills = self._cgroup.memory_kills()
        if kills != self._kills:
            self._kills = kills
            # The victim may still be listed for a moment.
            self._suspects = [*self._largest, *self._largest_before, *self._suspects][:MOST_SUSPECTS]
        used = self._cgroup.memory_used() or 0
        if used > self._limit * FULL_ENOUGH:
            used = self._cgroup.memory_needed() or 0
        fills = used - self._used_before > self._limit * FAST
        self._used_before = used
        if used > self._limit * NEARLY_FULL:
            self.on_nearly_full()
        if used > self._limit * FULL_ENOUGH:
            self._largest_before, self._largest = self._largest, find_largest_processes()
        cost = (time.monotonic() - began) / (SHARE_WHILE_IT_FILLS if fills else SHARE)
        pause = max(self._pause(used), min(cost, LONGEST_PAUSE))
        self._timer = self._reactor.after(pause, self._look)

    def _pause(self, used: int) -> float:
        return min(max(LEAST_SECONDS, (self._limit - used) / FILLS_PER_SECOND), MOST_SECONDS)


def find_largest_processes() -> list[Sighting]:
    """Return the processes with the most resident memory, the largest first, without the guest itself."""
    table = read_all_stats()
    order = sorted(table, key=lambda pid: table[pid].memory, reverse=True)
    return [Sighting(pid, table[pid], tuple(_ancestors(pid, table))) for pid in order[:MOST_SEEN] if pid != os.getpid()]


def _ancestors(pid: int, table: dict[int, Stat]) -> Iterable[int]:
    for _ in range(len(table)):
        stat = table.get(pid)
        if stat is None:
            return
        pid = stat.parent
        yield pid


def _is_alive(seen: Sighting) -> bool:
    """Return whether the process lives. One that was killed has given its memory back, even if it is still listed."""
    stat = read_stat(seen.pid)
    return stat is not None and stat.started == seen.started and stat.memory > 0


def describe_victim(pid: int | None, name: str, size: int | None) -> dict[str, Any]:
    """Return a victim in the form in which it is sent to the host."""
    return {"pid": pid, "program": name, "rss_bytes": size}
