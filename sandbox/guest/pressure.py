"""What the kernel says of memory and disk of this sandbox."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COUNTERS = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
_MEMORY = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
_PIDS = ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max")
NEARLY_FULL = 0.9


def enforced() -> dict[str, int]:
    """The limits that the kernel holds for this cgroup; one that is not set, or cannot be read, is left out."""
    found: dict[str, int] = {}
    for name, paths in (("memory_bytes", _MEMORY), ("pids", _PIDS)):
        for path in paths:
            try:
                with open(path, "rb") as file:
                    text = file.read().strip()
            except OSError:
                continue
            if text.isdigit():
                found[name] = int(text)
            break
    return found


class MemoryPressure:
    """Counts processes the kernel killed for memory in this sandbox (cgroup v1 or v2)."""

    def __init__(self) -> None:
        self._fd: int | None = None
        if os.getpid() != 1:  # a guest that is not PID 1 has no cgroup of its own
            return
        for path in _COUNTERS:
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            except OSError:
                continue

    def kills(self) -> int:
        """How many processes were killed for memory so far; 0 where that cannot be read."""
        if self._fd is None:
            return 0
        for line in os.pread(self._fd, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0


def disk_notice(folder: bytes) -> dict[str, Any] | None:
    """The notice that the place of ``folder`` is nearly full, or None. Sizes in bytes."""
    state = os.statvfs(folder)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    if os.getpid() != 1 or not size or free > size * (1 - NEARLY_FULL):
        return None
    return {"code": "disk_nearly_full", "free": free, "size": size, "path": os.fsdecode(folder)}
