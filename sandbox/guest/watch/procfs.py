"""The one reader of /proc/PID: what a process is, its parent, its processor time, its sockets, and the trees that follow.

All of it belongs to the commands: names and counts may be anything, and a process may end while it is read.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HERTZ = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for the disk",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}


class Stat:
    """One line of /proc/PID/stat.

    ``ticks`` is the processor time of the process, ``reaped_ticks`` that of the children it has waited for, both in units of
    1/HERTZ seconds. ``memory`` is resident memory in bytes. ``started`` distinguishes the process from another with its pid.
    ``letter`` is the kernel's letter for the state.
    """

    __slots__ = ("letter", "memory", "name", "parent", "reaped_ticks", "started", "threads", "ticks")

    def __init__(self, text: bytes) -> None:
        """Parse a line. Raises ValueError or IndexError if it is malformed."""
        begin, end = text.index(b"("), text.rindex(b")")
        words = text[end + 2 :].split(None, 22)
        self.name = text[begin + 1 : end].decode("utf-8", "replace")[:64]
        self.letter = words[0].decode("ascii", "replace")
        self.parent = int(words[1])
        self.ticks = int(words[11]) + int(words[12])
        self.reaped_ticks = int(words[13]) + int(words[14])
        self.threads = int(words[17])
        self.started = int(words[19])
        self.memory = int(words[21]) * PAGE_BYTES

    @property
    def state(self) -> str:
        """The state in words; "other" if it has none."""
        return _STATES.get(self.letter, "other")

    @property
    def age(self) -> float:
        """Seconds since the process was started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / HERTZ)


def read_stat(pid: int | str, task: int | str | None = None) -> Stat | None:
    """Return the stat of a process, or of one of its threads; None if it is gone."""
    text = read_file(f"/proc/{pid}/stat" if task is None else f"/proc/{pid}/task/{task}/stat", 4096)
    try:
        return Stat(text)
    except (ValueError, IndexError):
        return None


def read_all_stats() -> dict[int, Stat]:
    """Return the stat of every process, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(name)) is not None:
            found[int(name)] = stat
    return found


def read_file(path: str, size: int = 65536) -> bytes:
    """Return the first ``size`` bytes of a file below /proc; b"" if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_tracer(pid: int) -> int:
    """Return the pid of the debugger that traces a process; 0 without one."""
    for line in read_file(f"/proc/{pid}/status").splitlines():
        key, _, value = line.partition(b":")
        if key == b"TracerPid" and value.strip().isdigit():
            return int(value)
    return 0


def read_socket_inodes(pid: int | str, most_descriptors: int) -> set[str]:
    """Return the inodes of the sockets among the first ``most_descriptors`` open descriptors of a process.

    The set is empty if the process is gone, or if the calling thread must not look at it.
    """
    found: set[str] = set()
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")[:most_descriptors]
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            found.add(link[8:-1])
    return found


def read_parents() -> dict[int, int]:
    """Return the parent of every live process, by pid. A zombie with living threads counts as alive."""
    return {
        pid: stat.parent for pid, stat in read_all_stats().items() if stat.letter not in "ZX" or _has_living_thread(pid)
    }


def _has_living_thread(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    stats = (read_stat(pid, task) for task in tasks)
    return any(stat is not None and stat.letter not in "ZX" for stat in stats)


def group_by_parent(table: Mapping[int, Stat]) -> dict[int, list[int]]:
    """Return the children of each process in ``table``, by the pid of the parent."""
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    return children


def list_below(root: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """Return every process below ``root``, without ``root`` itself, level by level."""
    found = list(children.get(root, ()))
    seen = {root, *found}
    for pid in found:  # grows while it is walked
        fresh = [child for child in children.get(pid, ()) if child not in seen]
        seen.update(fresh)
        found += fresh
    return found


def sort_depth_first(root: int, pids: Sequence[int], children: Mapping[int, Sequence[int]]) -> list[int]:
    """Return those of ``pids`` that are below ``root`` in the order of a drawn tree: each followed by what is below it."""
    wanted, order = set(pids), []
    stack = [pid for pid in reversed(children.get(root, ())) if pid in wanted]
    while stack:
        pid = stack.pop()
        wanted.discard(pid)
        order.append(pid)
        stack += [child for child in reversed(children.get(pid, ())) if child in wanted]
    return order


def find_descendants(root: int, excluded: Collection[int] = ()) -> list[int]:
    """Return every live process below ``root``, parents before their children.

    ``root`` itself is left out, and so are the ``excluded`` processes with all below them.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in read_parents().items():
        if pid not in excluded:
            children.setdefault(parent, []).append(pid)
    return list_below(root, children)


def sum_tree_seconds(root: int, before: float = 0.0) -> float:
    """Return the user and system time in seconds of all processes below ``root``, alive, dead or reaped.

    ``before`` is what ``root`` had reaped before; it is subtracted.
    """
    root_stat = read_stat(root)  # first: a child that is reaped meanwhile is then missed, and not counted twice
    table = read_all_stats()
    ticks = sum(table[pid].ticks + table[pid].reaped_ticks for pid in list_below(root, group_by_parent(table)))
    reaped = 0.0 if root_stat is None else root_stat.reaped_ticks / HERTZ
    return max(0.0, reaped - before) + ticks / HERTZ
