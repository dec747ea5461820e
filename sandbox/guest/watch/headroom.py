"""Report how much of the sandbox is left: on request, or in a notice before something runs out.

A notice is sent when a threshold is crossed, not with every answer.
"""

from __future__ import annotations

import os
import time

from ..loop.context import Place
from .cgroup import Cgroup
from .memory_watch import FILLS_PER_SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .disk_watch import DiskWatch

NEARLY_FULL = 0.9
# A notice is repeated only after the use was below this share.
WELL_AGAIN = 0.85
# Beside a command that took this long, a look at the disks takes no time.
LONG_SECONDS = 0.02
# After a write, what is left is looked at so often: where something is nearly full already, and where much is left.
LEAST_SECONDS, MOST_SECONDS = 0.05, 1.0


class Headroom:
    """Lives in the reactor's thread. ``disk`` is set if the guest measures the disk itself."""

    def __init__(self, place: Place, cgroup: Cgroup, isolated: bool) -> None:
        self.disk: DiskWatch | None = None
        self._place = place
        self._cgroup = cgroup
        self._isolated = isolated
        self.started = time.monotonic()
        self._reported: set[str] = set()
        self._folders = _find_file_systems((place.workspace, place.home, b"/tmp"))
        # Until then what is written cannot have filled a disk, or memory; monotonic.
        self._disk_due = self._memory_due = 0.0
        self._looked = 0.0  # after a write
        self._left_out = False

    def notices(
        self, stopped_for_disk: bool = False, out_of_processes: bool = False, seconds: float = 0.0
    ) -> list[dict[str, Any]]:
        """Return notices of what is nearly used up, with sizes in bytes; each is sent once until the use has gone down.

        The disks are left to ``look_late``, after the answer, if what it is about took fewer ``seconds`` than LONG_SECONDS, and
        there was so much room at the last look that it cannot be used up yet. If the answer already says that the sandbox is
        ``out_of_processes``, the notice about them is left to a later answer.
        """
        if not self._isolated:
            return []
        self._left_out = not stopped_for_disk and seconds < LONG_SECONDS and time.monotonic() < self._disk_due
        of_disk = [] if self._left_out else self._of_disk(stopped_for_disk)
        return [*of_disk, *self._of_counters(out_of_processes)]

    def notices_after_write(self) -> list[dict[str, Any]]:
        """Return the notices after a file was written; none, without a look, while nothing can be used up yet.

        A look takes a quarter of the time of a small write.
        """
        now = time.monotonic()
        due = min(self._disk_due, self._memory_due, self._looked + MOST_SECONDS)
        if now < due or (due <= self._looked and now < self._looked + LEAST_SECONDS):
            return []
        self._looked = now
        return [*self._of_disk(False), *self._of_counters(False)] if self._isolated else []

    def look_late(self) -> list[dict[str, Any]]:
        """Return the notices of disks if ``notices`` left them out: fallocate fills one at once."""
        left_out, self._left_out = self._left_out, False
        return self._of_disk(False) if left_out else []

    def _of_disk(self, stopped: bool) -> list[dict[str, Any]]:
        watch = self.disk
        if watch is not None and stopped:
            return [{"code": "no_space", "used": watch.used, "limit": watch.limit}]
        places = self.places() if watch is None else [("the disk", max(0, watch.limit - watch.used), watch.limit)]
        room = min([free - size * (1 - NEARLY_FULL) for _, free, size in places], default=0)
        self._disk_due = time.monotonic() + room / FILLS_PER_SECOND
        return [
            {"code": "disk_nearly_full", "free": free, "size": size, "path": path}
            for path, free, size in places
            if self._crossed(path, size - free, size)
        ]

    def _of_counters(self, out_of_processes: bool) -> list[dict[str, Any]]:
        cgroup, limits = self._cgroup, self._place.limits
        found = []
        memory = limits["memory_bytes"]
        used = cgroup.memory_used() or 0
        if used > memory * WELL_AGAIN:
            used = cgroup.memory_needed() or 0
        self._memory_due = time.monotonic() + (memory * NEARLY_FULL - used) / FILLS_PER_SECOND
        if self._crossed("memory", used, memory):
            files = sum(size - free for path, free, size in self.places() if _is_in_memory(path))
            found.append({"code": "memory_nearly_full", "used": used, "limit": memory, "files": min(files, used)})
        count = cgroup.processes() or 0
        if not out_of_processes and self._crossed("processes", count, limits["pids"]):
            found.append({"code": "processes_nearly_full", "used": count, "limit": limits["pids"]})
        return found

    def _crossed(self, name: str, used: int, size: int) -> bool:
        if used < size * WELL_AGAIN:
            self._reported.discard(name)
        elif used >= size * NEARLY_FULL and size and name not in self._reported:
            self._reported.add(name)
            return True
        return False

    def places(self) -> list[tuple[str, int, int]]:
        """Return (path, free bytes, size in bytes) of each file system that commands may write to."""
        found = []
        for folder in self._folders:
            try:
                state = os.statvfs(folder)
            except OSError:
                continue
            if state.f_blocks:
                found.append((folder, state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize))
        return found

    def usage(self) -> dict[str, Any]:
        """Return what is used and what the limits are; None for what is unknown in this sandbox."""
        limits, cgroup, watch = self._place.limits, self._cgroup, self.disk
        places = self.places() if self._isolated else self.places()[:1]
        if watch is not None:
            free = max(0, watch.limit - watch.used)
            places = [(path, min(free, room), min(watch.limit, size)) for path, room, size in places]
        return {
            "uptime_seconds": round(time.monotonic() - self.started, 3),
            "cpu_seconds": cgroup.cpu_seconds(),
            "memory_used_bytes": cgroup.memory_needed(),
            "memory_peak_bytes": cgroup.memory_peak(),
            "memory_limit_bytes": limits["memory_bytes"] if self._isolated else None,
            "processes": cgroup.processes(),
            "process_limit": limits["pids"] if self._isolated else None,
            "places": [{"path": path, "free_bytes": free, "size_bytes": size} for path, free, size in places],
        }


def _find_file_systems(folders: tuple[bytes, ...]) -> list[str]:
    """Return those of ``folders`` that are on a file system of their own, or the first of several on the same."""
    found: dict[int, str] = {}
    for folder in folders:
        try:
            found.setdefault(os.stat(folder).st_dev, os.fsdecode(folder))
        except OSError:
            continue
    return list(found.values())


def _is_in_memory(path: str) -> bool:
    """Return whether the file system has no block device: in a sandbox that is a tmpfs."""
    try:
        return os.major(os.stat(path).st_dev) == 0
    except OSError:
        return False
