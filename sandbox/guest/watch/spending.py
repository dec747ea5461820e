"""What a command used: processor time of its whole tree, what is dead included, and the largest of its processes.

The runner of a command is its sub-reaper: what it has reaped, with all that those had waited for, is the dead part, and it reports
that. The living part is read from /proc.
"""

from __future__ import annotations

import os

from ..commands import zygote

TICKS = os.sysconf("SC_CLK_TCK")
MOST_KILLED = 16


class Spending:
    """``cpu_seconds`` and ``max_rss_bytes`` (of the largest process) as far as they are known; None before anything ended.

    ``killed`` is which of the runner's own children ended by SIGKILL: (pid, name, largest resident size in bytes).
    """

    __slots__ = ("cpu_seconds", "killed", "max_rss_bytes")

    def __init__(self) -> None:
        self.cpu_seconds: float | None = None
        self.max_rss_bytes: int | None = None
        self.killed: list[tuple[int, bytes, int]] = []

    def note(self, packet: bytes) -> None:
        """Take a runner's report: a packet of kind X, Z or K."""
        if packet[:1] == b"K":
            _, pid, kib, name = zygote.KILLED.unpack(packet)
            if len(self.killed) < MOST_KILLED:
                self.killed.append((pid, name.rstrip(b"\0"), kib * 1024))
        else:
            seconds, kib = zygote.spent(packet)
            self.cpu_seconds = max(seconds, self.cpu_seconds or 0.0)
            self.max_rss_bytes = max(kib * 1024, self.max_rss_bytes or 0)

    def with_living(self, root: int, past: float) -> float:
        """Processor seconds until now with those of all that lives below the runner ``root``, which had reaped ``past`` before."""
        self.cpu_seconds = max(self.cpu_seconds or 0.0, tree_seconds(root, past))
        return self.cpu_seconds


def tree_seconds(root: int, past: float = 0.0) -> float:
    """User and system time of all below ``root``, dead or alive, in seconds; ``past`` is what it had reaped before."""
    _, _, reaped = _times(f"/proc/{root}/stat")
    table: dict[int, list[tuple[int, float]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent, alive, waited = _times(f"/proc/{name}/stat")
            table.setdefault(parent, []).append((int(name), alive + waited))
    total, level = max(0.0, reaped - past), [root]
    for pid in level:  # grows while it is walked
        for child, seconds in table.get(pid, ()):
            total += seconds
            level.append(child)
    return total


def _times(path: str) -> tuple[int, float, float]:
    """(parent, own seconds, seconds of children that were waited for); zeros when it is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return 0, 0.0, 0.0
    words = text[text.rfind(b")") + 2 :].split(None, 15)
    user, system, waited_user, waited_system = map(int, words[11:15])
    return int(words[1]), (user + system) / TICKS, (waited_user + waited_system) / TICKS
