"""Hold a command to a limit of processor time.

A process that ignores SIGCHLD does not wait for its children, and once they are dead no account of a process contains their time.
The sandbox's own counter does, and it is used while the command is the only one at work.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import Command
    from .processes import Processes

LEAST_SECONDS = 0.05
# The share of time that looks may take.
SHARE = 0.1
# What the guest and its own processes may use of the sandbox's counter beside a command.
SLACK_SECONDS = 0.25


class CpuLimit:
    """Stops ``command`` with the reason "cpu" when its tree has used ``limit`` seconds. Lives in the reactor's thread."""

    def __init__(self, processes: Processes, command: Command, limit: float) -> None:
        self._processes = processes
        self._command = command
        self._limit = limit
        self._seconds_before = self._sandbox_seconds()
        # The command is the only one at work as long as no other starts.
        self._starts = processes.starts if processes.is_alone() else None
        self._look_after(limit / processes.cpus)

    def _look_after(self, seconds: float) -> None:
        self._processes.reactor.after(max(LEAST_SECONDS, seconds), self._look)

    def _look(self) -> None:
        command = self._command
        if command.tree_empty or command.stopping:
            return
        began = time.monotonic()
        used = self._used()
        if used < self._limit:
            cost = time.monotonic() - began
            self._look_after(max((self._limit - used) / self._processes.cpus, cost / SHARE))
            return
        command.resources.cpu_seconds = used
        if not command.running:  # processes that it left behind: its caller has an answer already
            notice = {"code": "cpu_limit", "id": command.id, "used": used, "limit": self._limit}
            self._processes.pending_notices.add(notice)
        self._processes.stop(command, "cpu", lambda _: None)

    def _used(self) -> float:
        used = self._command.cpu_used()
        if self._seconds_before is not None and self._starts == self._processes.starts:
            now = self._sandbox_seconds() or 0.0
            used = max(used, now - self._seconds_before - SLACK_SECONDS)
        return used

    def _sandbox_seconds(self) -> float | None:
        """Return the processor time of everything but the guest; None if another process of the guest works beside it."""
        total = self._processes.cgroup.cpu_seconds()
        return None if total is None or self._processes.disk is not None else total - time.process_time()
