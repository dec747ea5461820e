"""Which limits of the sandbox a command ran into, as far as that can be known: counters around it, how it ended, what it said."""

from __future__ import annotations

import os
import re
import signal

from .memory_watch import described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..commands.command import Command
    from ..commands.processes import Processes
    from .cgroup import Cgroup

# What the C library says of EFBIG and EMFILE, and shells of SIGXFSZ. Looked for only where a command failed.
_TOO_LARGE = (b"File too large", b"File size limit exceeded")
_TOO_MANY_OPEN = (b"Too many open files",)
# What programs say that go around the proxy: of a name that nobody resolves, and of a way that does not exist.
_NO_WAY = (
    b"ould not resolve host", b"Network is unreachable", b"Temporary failure in name resolution", b"Name or service not known",
    b"EAI_AGAIN", b"ENETUNREACH", b"network is unreachable", b": no such host", b"ame resolution failed",
)  # fmt: skip
# What bash says of a program that was killed: its pid and its command line.
_KILLED = re.compile(rb"line \d+: +(\d{1,9}) Killed +(\S{1,100})")


class Before:
    """The counters when a command began."""

    __slots__ = ("kills", "refused")

    def __init__(self, cgroup: Cgroup) -> None:
        self.kills = cgroup.memory_kills()
        self.refused = cgroup.forks_refused()


def memory(processes: Processes, command: Command, before: Before) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fields of the result, and notices, of what was killed for memory while ``command`` ran.

    The counter is the sandbox's: that the command itself was hit is said only where it ended by SIGKILL without being stopped.
    """
    kills = processes.cgroup.memory_kills() - before.kills
    if kills <= 0:
        return {}, []
    exit_code, by = command.outcome
    certain = command.stop_reason is None and (by == "SIGKILL" or exit_code == 137)
    victim = _victim(processes, command, certain)
    notice = {
        "code": "out_of_memory", "kills": kills, "limit": processes.place.limits["memory_bytes"], "certain": certain,
        **(victim or {}),
    }  # fmt: skip
    return {"oom_killed": certain, "oom_victim": victim}, [notice]


def _victim(processes: Processes, command: Command, certain: bool) -> dict[str, Any] | None:
    """The largest process of ``command`` that was killed; what is not known of it is None. None where it may be another's."""
    spent = command.spent
    if command.stop_reason is not None or command.runner is None:
        return None
    if spent.killed:  # by the runner's own word
        return described(*max(spent.killed, key=lambda one: one[2]))
    most = spent.max_rss_bytes or 0  # of any process of the command: its parent was told when it ended
    gone = processes.memory_watch.gone(command.runner.pid, command.started)
    if gone is not None and gone.bytes >= most / 2:  # else the one that was killed grew and died between two looks
        return described(gone.pid, gone.name, max(gone.bytes, most))
    if named := _KILLED.search(command.output.tail()):
        return described(int(named[1]), os.path.basename(named[2]), None)
    return described(None, b"", spent.max_rss_bytes) if certain and spent.max_rss_bytes else None


def others(processes: Processes, command: Command, before: Before) -> list[dict[str, Any]]:
    """Notices of the limits of processes, of file size and of open files, and of a network that is not there."""
    limits = processes.place.limits
    notices: list[dict[str, Any]] = []
    refused = processes.cgroup.forks_refused() - before.refused
    if refused > 0:
        notices.append({"code": "too_many_processes", "hits": refused, "limit": limits["pids"], "exit_code": command.outcome[0]})
    exit_code, by = command.outcome
    if exit_code == 0 or not processes.isolated:
        return notices
    said = command.output.tail()
    if by == "SIGXFSZ" or exit_code == 128 + signal.SIGXFSZ or any(text in said for text in _TOO_LARGE):
        notices.append({"code": "file_too_large", "limit": limits["file_bytes"]})
    if any(text in said for text in _TOO_MANY_OPEN):
        notices.append({"code": "too_many_open_files", "limit": limits["open_files"]})
    if limits.get("network") != "bridge" and not command.refusals and any(text in said for text in _NO_WAY):
        notices.append({"code": "no_direct_network", "network": limits.get("network")})
    return notices
