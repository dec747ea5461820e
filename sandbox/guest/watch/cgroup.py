"""Read the kernel's counters for the whole sandbox: memory, processes, processor time. Supports cgroup v1 and v2."""

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"
# Paths below the root, of cgroup v1 and of v2.
_USED = ("memory/memory.usage_in_bytes", "memory.current")
_PEAK = ("memory/memory.max_usage_in_bytes", "memory.peak")
_STAT = ("memory/memory.stat", "memory.stat")
_KILLS = ("memory/memory.oom_control", "memory.events")
_PROCESSES = ("pids/pids.current", "pids.current")
_REFUSED = ("pids/pids.events", "pids.events")
_CPU_NANOSECONDS, _CPU_STAT = "cpuacct/cpuacct.usage", "cpu.stat"
# File pages, which the kernel reclaims before it kills for memory. Files in memory (tmpfs) do not count as such.
_RECLAIMABLE = ((b"total_inactive_file", b"total_active_file"), (b"inactive_file", b"active_file", b"slab_reclaimable"))

_last: dict[bytes, tuple[bytes, int | None]] = {}  # what was read for a name, and its value in that


class Cgroup:
    """Counters of the cgroup below ``root``; each is None if the kernel does not show it. The files stay open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, int] = {}

    def memory_used(self) -> int | None:
        """Return the bytes charged to the sandbox, including what the kernel could reclaim."""
        return self._number(_USED)

    def memory_needed(self) -> int | None:
        """Return the bytes charged to the sandbox that cannot be reclaimed: processes, and files in memory."""
        used = self._number(_USED)
        if used is None:
            return None
        for path, names in zip(_STAT, _RECLAIMABLE, strict=True):
            if text := self._text(path):
                return max(0, used - sum(_named(text, name) or 0 for name in names))
        return used

    def memory_peak(self) -> int | None:
        """Return the most bytes that were ever charged to the sandbox."""
        return self._number(_PEAK)

    def memory_kills(self) -> int:
        """Return how many processes were killed for memory so far; 0 if that cannot be read."""
        return self._named(_KILLS, b"oom_kill") or 0

    def processes(self) -> int | None:
        """Return the number of processes and threads, including those of the guest."""
        return self._number(_PROCESSES)

    def forks_refused(self) -> int:
        """Return how often the limit prevented a new process or thread; 0 if that cannot be read."""
        return self._named(_REFUSED, b"max") or 0

    def cpu_seconds(self) -> float | None:
        """Return the processor time in seconds of everything that ever ran in the sandbox."""
        nanoseconds = self._text(_CPU_NANOSECONDS).strip()
        if nanoseconds.isdigit():
            return int(nanoseconds) / 1e9
        microseconds = _named(self._text(_CPU_STAT), b"usage_usec")
        return None if microseconds is None else microseconds / 1e6

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


def open_own_cgroup() -> Cgroup:
    """Return the sandbox's cgroup. A guest that is not PID 1 has none of its own: then every counter is missing."""
    return Cgroup(ROOT if os.getpid() == 1 else "/nonexistent")


def _named(text: bytes, name: bytes) -> int | None:
    """Return the value in the line "name value"."""
    if not text:
        return None
    known = _last.get(name)
    if known is not None and known[0] == text:  # each command looks at counters that hardly ever change
        return known[1]
    word = (b"\n" + text).partition(b"\n" + name + b" ")[2].partition(b"\n")[0].strip()
    value = int(word) if word.isdigit() else None
    _last[name] = text, value
    return value
