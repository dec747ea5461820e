"""What /proc/PID/stat and /proc/PID/cmdline say, of many processes at once."""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERTZ = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COMMAND_CHARS = 200
# The shell around a command (see ``sessions``) has this before the command itself.
_WRAPPED = re.compile(rb"\A[^\0]*\0-c\0[^\0]*; exit \$__gamebox_status\0([^\0]*)\0([^\0]*)")
_STATES = {
    b"R": "running", b"S": "sleeping", b"D": "waiting for the disk", b"T": "stopped", b"t": "traced", b"Z": "zombie",
    b"I": "idle",
}  # fmt: skip


class Stat:
    """One process; ``ticks`` of CPU in units of 1/HERTZ seconds, ``memory`` (resident) in bytes, ``started`` tells it from another
    process with its pid.
    """

    __slots__ = ("memory", "name", "parent", "started", "state", "threads", "ticks")

    def __init__(self, text: bytes) -> None:
        """Raises ValueError or IndexError for what is no line of a stat file."""
        begin, end = text.index(b"("), text.rindex(b")")
        words = text[end + 2 :].split()
        self.name = text[begin + 1 : end].decode("utf-8", "replace")[:64]
        self.state = _STATES.get(words[0], "other")
        self.parent = int(words[1])
        self.ticks = int(words[11]) + int(words[12])
        self.threads = int(words[17])
        self.started = int(words[19])
        self.memory = int(words[21]) * PAGE_BYTES

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / HERTZ)


def all_stats() -> dict[int, Stat]:
    """Every process by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    found[int(name)] = Stat(file.read(4096))
            except (OSError, ValueError, IndexError):  # gone meanwhile
                continue
    return found


def below(root: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """Every process below ``root``, which is not among them; level by level."""
    found = list(children.get(root, ()))
    seen = {root, *found}
    for pid in found:  # grows while it is walked
        fresh = [child for child in children.get(pid, ()) if child not in seen]
        seen.update(fresh)
        found += fresh
    return found


def in_order(root: int, shown: Sequence[int], children: Mapping[int, Sequence[int]]) -> list[int]:
    """Those in ``shown`` as a tree is written: each followed by what is below it."""
    wanted, order = set(shown), []
    stack = [pid for pid in reversed(children.get(root, ())) if pid in wanted]
    while stack:
        pid = stack.pop()
        wanted.discard(pid)
        order.append(pid)
        stack += [child for child in reversed(children.get(pid, ())) if child in wanted]
    return order


def command_line(pid: int) -> str:
    """The command line of a process, cut; of a shell that carries out a command, that command: "bash -c 'make'"."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            data = file.read(65536)
    except OSError:
        return ""
    if wrapped := _WRAPPED.match(data):
        data = b"%s -c %s" % wrapped.groups()
    return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")[:COMMAND_CHARS]
