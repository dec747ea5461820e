"""What the kernel counts for this sandbox as a whole: memory, processes, processor time. cgroup v1 and v2 are both read."""

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"
# Below the root, of cgroup v1 and of v2.
_USED = ("memory/memory.usage_in_bytes", "memory.current")
_PEAK = ("memory/memory.max_usage_in_bytes", "memory.peak")
_STAT = ("memory/memory.stat", "memory.stat")
_KILLS = ("memory/memory.oom_control", "memory.events")
_PROCESSES = ("pids/pids.current", "pids.current")
_REFUSED = ("pids/pids.events", "pids.events")
_CPU_NANOSECONDS, _CPU_STAT = "cpuacct/cpuacct.usage", "cpu.stat"
# File pages, which the kernel takes back before it kills for memory; files in memory (tmpfs) are not among them.
_RECLAIMABLE = ((b"total_inactive_file", b"total_active_file"), (b"inactive_file", b"active_file", b"slab_reclaimable"))


class Cgroup:
    """Counters of the cgroup below ``root``; each is None where the kernel does not show it. Files stay open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, int] = {}

    def memory_used(self) -> int | None:
        """Bytes charged to the sandbox, with what the kernel could take back."""
        return self._number(_USED)

    def memory_needed(self) -> int | None:
        """Bytes charged to the sandbox that cannot be taken back: processes, and files in memory."""
        used = self._number(_USED)
        if used is None:
            return None
        for path, names in zip(_STAT, _RECLAIMABLE, strict=True):
            if text := self._text(path):
                return max(0, used - sum(_named(text, name) or 0 for name in names))
        return used

    def memory_peak(self) -> int | None:
        """The most bytes that were ever charged to the sandbox."""
        return self._number(_PEAK)

    def memory_kills(self) -> int:
        """How many processes were killed for memory so far; 0 where that cannot be read."""
        return self._named(_KILLS, b"oom_kill") or 0

    def processes(self) -> int | None:
        """How many processes and threads there are, the guest's own included."""
        return self._number(_PROCESSES)

    def forks_refused(self) -> int:
        """How often a process or thread was refused because of the limit; 0 where that cannot be read."""
        return self._named(_REFUSED, b"max") or 0

    def cpu_seconds(self) -> float | None:
        """Processor time of all that ever ran in the sandbox."""
        nanoseconds = self._text(_CPU_NANOSECONDS).strip()
        if nanoseconds.isdigit():
            return int(nanoseconds) / 1e9
        microseconds = _named(self._text(_CPU_STAT), b"usage_usec")
        return None if microseconds is None else microseconds / 1e6

    # --- reading ------------------------------------------------------------------
    def _number(self, paths: tuple[str, ...]) -> int | None:
        for path in paths:
            text = self._text(path).strip()
            if text.isdigit():
                return int(text)
        return None

    def _named(self, paths: tuple[str, ...], name: bytes) -> int | None:
        for path in paths:
            value = _named(self._text(path), name)
            if value is not None:
                return value
        return None

    def _text(self, path: str) -> bytes:
        fd = self._files.get(path)
        if fd is None:
            try:
                fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                fd = -1
            self._files[path] = fd
        try:
            return os.pread(fd, 8192, 0) if fd >= 0 else b""
        except OSError:
            return b""


def own() -> Cgroup:
    """The sandbox's; without a single counter for a guest that is not PID 1, for it has no cgroup of its own."""
    return Cgroup(ROOT if os.getpid() == 1 else "/nonexistent")


def _named(text: bytes, name: bytes) -> int | None:
    """The value in the line "name value"."""
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
