"""Find out which limits of the sandbox a command ran into: from counters around it, how it ended, and what it printed."""

from __future__ import annotations

import os

from ..builtin import signal
from ..watch.memory_watch import describe_victim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..watch.cgroup import Cgroup
    from .command import Command
    from .processes import Processes

# How the C library reports EFBIG and EMFILE, and shells SIGXFSZ. Searched only in the output of commands that failed.
_TOO_LARGE = (b"File too large", b"File size limit exceeded")
_TOO_MANY_OPEN = (b"Too many open files",)
# How programs that do not use the proxy report a name that does not resolve, or a network without a route.
_NO_NETWORK = (
    b"ould not resolve host",
    b"Network is unreachable",
    b"Temporary failure in name resolution",
    b"Name or service not known",
    b"EAI_AGAIN",
    b"ENETUNREACH",
    b"network is unreachable",
    b": no such host",
    b"ame resolution failed",
)
# How bash reports a program that was killed: its pid and its command line.
_KILLED = rb"line \d+: +(\d{1,9}) Killed +(\S{1,100})"


class Counters:
    """The counters of the sandbox when a command began."""

    __slots__ = ("forks_refused", "memory_kills")

    def __init__(self, cgroup: Cgroup) -> None:
        self.memory_kills = cgroup.memory_kills()
        self.forks_refused = cgroup.forks_refused()

    def find_hits(self, processes: Processes, command: Command) -> LimitHits:
        """Find out what ``command``, which has ended, ran into."""
        kills = processes.cgroup.memory_kills() - self.memory_kills
        refused = processes.cgroup.forks_refused() - self.forks_refused
        fields, notices = _memory_hits(processes, command, kills)
        return LimitHits(fields, notices, _other_hits(processes, command, refused))


class LimitHits:
    """Fields of the result of a command, its notices about memory, and those about other limits."""

    __slots__ = ("fields", "memory_notices", "other_notices")

    def __init__(
        self, fields: dict[str, Any], memory_notices: list[dict[str, Any]], other_notices: list[dict[str, Any]]
    ) -> None:
        self.fields = fields
        self.memory_notices = memory_notices
        self.other_notices = other_notices


def _memory_hits(processes: Processes, command: Command, kills: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return fields of the result, and notices, if processes were killed for memory while ``command`` ran.

    The counter is that of the sandbox: only if the command ended by SIGKILL without being stopped is it certain that it was hit
    itself.
    """
    if kills <= 0:
        return {}, []
    exit_code, signal_name = command.outcome
    certain = command.stop_reason is None and (signal_name == "SIGKILL" or exit_code == 137)
    victim = _victim(processes, command, certain)
    limit = processes.place.limits["memory_bytes"]
    notice = {"code": "out_of_memory", "kills": kills, "limit": limit, "certain": certain, **(victim or {})}
    return {"oom_killed": certain, "oom_victim": victim}, [notice]


def _victim(processes: Processes, command: Command, certain: bool) -> dict[str, Any] | None:
    """Return the largest process of ``command`` that was killed, with None for what is unknown about it.

    Returns None if the victim may belong to another command.
    """
    resources = command.resources
    if command.stop_reason is not None or command.runner is None:
        return None
    if resources.killed:  # reported by the runner
        return describe_victim(*max(resources.killed, key=lambda process: process[2]))
    most = resources.max_rss_bytes or 0  # of any process of the command, as its parent learned when it ended
    victim = processes.memory_watch.find_victim(command.runner.pid, command.started)
    if victim is not None and victim.bytes >= most / 2:  # else the real victim grew and died between two looks
        return describe_victim(victim.pid, victim.name, max(victim.bytes, most))
    import re

    if match := re.search(_KILLED, command.output.tail()):
        return describe_victim(int(match[1]), os.path.basename(match[2]).decode("utf-8", "replace"), None)
    return describe_victim(None, "", resources.max_rss_bytes) if certain and resources.max_rss_bytes else None


def _other_hits(processes: Processes, command: Command, refused: int) -> list[dict[str, Any]]:
    """Return notices about the limits of processes, of file size and of open files, and about a missing network."""
    limits = processes.place.limits
    notices: list[dict[str, Any]] = []
    exit_code, signal_name = command.outcome
    if refused > 0:
        fields = {"hits": refused, "limit": limits["pids"], "exit_code": exit_code}
        notices.append({"code": "too_many_processes", **fields})
    if exit_code == 0 or not processes.isolated:
        return notices
    tail = command.output.tail()
    too_large = signal_name == "SIGXFSZ" or exit_code == 128 + signal.SIGXFSZ
    if too_large or any(text in tail for text in _TOO_LARGE):
        notices.append({"code": "file_too_large", "limit": limits["file_bytes"]})
    if any(text in tail for text in _TOO_MANY_OPEN):
        notices.append({"code": "too_many_open_files", "limit": limits["open_files"]})
    if limits.get("network") != "bridge" and not command.refusals and any(text in tail for text in _NO_NETWORK):
        notices.append({"code": "no_direct_network", "network": limits.get("network")})
    return notices
