"""What is left of the sandbox: asked for, or told before it runs out. A threshold is told when it is crossed, not on each call."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..commands.processes import Processes

NEARLY_FULL = 0.9
# What is told once is told again only after it was below this share.
WELL_AGAIN = 0.85


def _is_in_memory(path: str) -> bool:
    """Whether no block device is behind it: in a sandbox such a place is a tmpfs."""
    try:
        return os.major(os.stat(path).st_dev) == 0
    except OSError:
        return False


class Headroom:
    """Lives in the reactor's thread."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._started = time.monotonic()
        self._told: set[str] = set()

    def notices(self, stopped_for_disk: bool = False, told_of_processes: bool = False) -> list[dict[str, Any]]:
        """Notices of what is nearly used up, each once until it was better; sizes in bytes.

        Where the answer has already ``told_of_processes`` that they ran out, the notice of them is left to a later answer.
        """
        if not self._processes.isolated:
            return []
        return [*self._of_disk(stopped_for_disk), *self._of_counters(told_of_processes)]

    def _of_disk(self, stopped: bool) -> list[dict[str, Any]]:
        watch = self._processes.disk
        if watch is not None and stopped:
            return [{"code": "no_space", "used": watch.used, "limit": watch.limit}]
        places = [("the disk", max(0, watch.limit - watch.used), watch.limit)] if watch is not None else self.places()
        return [
            {"code": "disk_nearly_full", "free": free, "size": size, "path": path}
            for path, free, size in places
            if self._crossed(path, size - free, size)
        ]

    def _of_counters(self, told_of_processes: bool) -> list[dict[str, Any]]:
        cgroup, limits = self._processes.cgroup, self._processes.place.limits
        found = []
        memory = limits["memory_bytes"]
        used = cgroup.memory_used() or 0
        if used > memory * WELL_AGAIN:
            used = cgroup.memory_needed() or 0
        if self._crossed("memory", used, memory):
            files = sum(size - free for path, free, size in self.places() if _is_in_memory(path))
            found.append({"code": "memory_nearly_full", "used": used, "limit": memory, "files": min(files, used)})
        count = cgroup.processes() or 0
        if not told_of_processes and self._crossed("processes", count, limits["pids"]):
            found.append({"code": "processes_nearly_full", "used": count, "limit": limits["pids"]})
        return found

    def _crossed(self, name: str, used: int, size: int) -> bool:
        if used < size * WELL_AGAIN:
            self._told.discard(name)
        elif used >= size * NEARLY_FULL and size and name not in self._told:
            self._told.add(name)
            return True
        return False

    def places(self) -> list[tuple[str, int, int]]:
        """(path, free bytes, size) of each file system that commands may write to."""
        place = self._processes.place
        found, devices = [], set()
        for folder in (place.workspace, place.home, b"/tmp"):
            try:
                device, state = os.stat(folder).st_dev, os.statvfs(folder)
            except OSError:
                continue
            if device not in devices and state.f_blocks:
                devices.add(device)
                found.append((os.fsdecode(folder), state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize))
        return found

    def usage(self) -> dict[str, Any]:
        """What is used and what there is; None for what cannot be told of this sandbox."""
        processes = self._processes
        limits, cgroup = processes.place.limits, processes.cgroup
        watch = processes.disk
        places = self.places() if processes.isolated else self.places()[:1]
        if watch is not None:
            free = max(0, watch.limit - watch.used)
            places = [(path, min(free, room), min(watch.limit, size)) for path, room, size in places]
        known = processes.isolated
        return {
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "cpu_seconds": cgroup.cpu_seconds(),
            "memory_used_bytes": cgroup.memory_needed(),
            "memory_peak_bytes": cgroup.memory_peak(),
            "memory_limit_bytes": limits["memory_bytes"] if known else None,
            "processes": cgroup.processes(),
            "process_limit": limits["pids"] if known else None,
            "places": [{"path": path, "free_bytes": free, "size_bytes": size} for path, free, size in places],
            "running": [c.id for c in processes.commands.values() if c.running][:64],
        }  # fmt: skip
