"""Who was killed for memory: the kernel tells inside how many were, and not which, so the largest are looked at before.

Looks are the rarer the more room there is, and cost nothing while no command runs. Lives in the reactor's thread.
"""

from __future__ import annotations

import os
import time

from ..loop.reactor import Reactor, Timer
from .cgroup import Cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
# Memory does not fill faster than this (a process that touches new pages gets 2 to 4 GiB a second here).
FILLS_PER_SECOND = 4 << 30
LEAST_SECONDS, MOST_SECONDS = 0.01, 1.0
# At most this share of the time goes into looking, but a rest is no longer than LONGEST_REST; more of it when memory filled by
# more than FAST of the limit since the last look.
SHARE, SHARE_WHILE_IT_FILLS, FAST = 0.02, 0.5, 1 / 64
LONGEST_REST = 0.2
# Processes are looked at once memory is this full.
FULL_ENOUGH = 0.3
MOST_SEEN, MOST_SUSPECTS = 8, 32


class Seen:
    """One process as it was seen at the monotonic time ``at``: ``chain`` are its ancestors, the closest first."""

    __slots__ = ("at", "bytes", "chain", "name", "pid", "started")

    def __init__(self, pid: int, name: bytes, size: int, started: bytes, chain: tuple[int, ...]) -> None:
        self.at = time.monotonic()
        self.pid = pid
        self.name = name
        self.bytes = size
        self.started = started
        self.chain = chain


class MemoryWatch:
    """Remembers the largest processes of the last look. ``at_work`` says whether a command is."""

    def __init__(self, reactor: Reactor, cgroup: Cgroup, limit: int, at_work: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._cgroup = cgroup
        self._limit = limit
        self._at_work = at_work
        self._timer: Timer | None = None
        self._largest: list[Seen] = []
        self._suspects: list[Seen] = []
        self._kills = self._before = 0
        self._off = cgroup.memory_used() is None

    def wake(self) -> None:
        """A command starts."""
        if self._timer is None and not self._off:
            self._before = self._cgroup.memory_used() or 0
            self._timer = self._reactor.after(self._pause(self._before), self._look)

    def gone(self, runner: int, since: float) -> Seen | None:
        """The largest below the process ``runner`` that was there after ``since``, and is no more since the kernel killed."""
        known = [seen for seen in (*self._suspects, *self._largest) if runner in seen.chain and seen.at >= since]
        mine = [seen for seen in known if not _is_there(seen)]
        return max(mine, key=lambda seen: seen.bytes) if mine else None

    def _look(self) -> None:
        if not self._at_work():
            self._timer = None
            return
        began = time.monotonic()
        kills = self._cgroup.memory_kills()
        if kills != self._kills:
            self._kills = kills
            self._suspects = [*self._largest, *self._suspects][
                :MOST_SUSPECTS
            ]  # who was hit may be there for a moment yet
        used = self._cgroup.memory_used() or 0
        if used > self._limit * FULL_ENOUGH:
            used = self._cgroup.memory_needed() or 0
        fills = used - self._before > self._limit * FAST
        self._before = used
        if used > self._limit * FULL_ENOUGH:
            self._largest = largest()
        cost = (time.monotonic() - began) / (SHARE_WHILE_IT_FILLS if fills else SHARE)
        pause = max(self._pause(used), min(cost, LONGEST_REST))
        self._timer = self._reactor.after(pause, self._look)

    def _pause(self, used: int) -> float:
        return min(max(LEAST_SECONDS, (self._limit - used) / FILLS_PER_SECOND), MOST_SECONDS)


def largest() -> list[Seen]:
    """The processes with the most resident memory, the largest first; the guest is not among them."""
    found: dict[int, tuple[int, bytes, int, bytes]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            found[int(name)] = stat
    order = sorted(found, key=lambda pid: found[pid][2], reverse=True)
    return [
        Seen(pid, found[pid][1], found[pid][2], found[pid][3], tuple(_ancestors(pid, found)))
        for pid in order[:MOST_SEEN]
        if pid != os.getpid()
    ]


def _ancestors(pid: int, table: dict[int, tuple[int, bytes, int, bytes]]) -> Iterable[int]:
    for _ in range(len(table)):
        entry = table.get(pid)
        if entry is None:
            return
        pid = entry[0]
        yield pid


def _stat(pid: int) -> tuple[int, bytes, int, bytes] | None:
    """(parent, name, resident bytes, when it was started); None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return None
    end = text.rfind(b")")
    words = text[end + 2 :].split()
    return int(words[1]), text[text.find(b"(") + 1 : end], int(words[21]) * PAGE, words[19]


def _is_there(seen: Seen) -> bool:
    """Whether the process lives: one that was killed has given its memory back, though it may be listed still."""
    stat = _stat(seen.pid)
    return stat is not None and stat[3] == seen.started and stat[2] > 0


def described(pid: int | None, name: bytes, size: int | None) -> dict[str, Any]:
    """A victim as the host is told of it."""
    return {"pid": pid, "program": name.decode("utf-8", "replace"), "rss_bytes": size}
