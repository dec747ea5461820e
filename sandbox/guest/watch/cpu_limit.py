"""Holding a command to a limit of processor time.

What a process that ignores SIGCHLD started, and never waited for, is in nobody's account once it is dead. The sandbox's own counter
has it all the same, and is believed where the command was the only one at work.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..commands.command import Command
    from ..commands.processes import Processes

LEAST_SECONDS = 0.05
# At most this share of the time goes into looking.
SHARE = 0.1
# What the guest and its own processes may have used of the sandbox's counter beside a command.
SLACK_SECONDS = 0.25


class CpuWatch:
    """Ends ``command`` with the reason "cpu" when its tree has used ``limit`` seconds. Lives in the reactor's thread."""

    def __init__(self, processes: Processes, command: Command, limit: float) -> None:
        self._processes = processes
        self._command = command
        self._limit = limit
        self._cpus = processes.cpus
        self._before = self._sandbox_seconds()
        self._mark = processes.lone_start()
        self._again(limit / self._cpus)

    def _again(self, seconds: float) -> None:
        self._processes.reactor.after(max(LEAST_SECONDS, seconds), self._look)

    def _look(self) -> None:
        command = self._command
        if command.tree_empty or command.stopping:
            return
        began = time.monotonic()
        used = self._used()
        if used >= self._limit:
            command.spent.cpu_seconds = used
            if not command.running:  # what it left behind; its caller was answered before
                self._processes.endings.tell(
                    {"code": "cpu_limit", "id": command.id, "used": used, "limit": self._limit}
                )
            self._processes.stop(command, "cpu", lambda _: None)
            return
        self._again(max((self._limit - used) / self._cpus, (time.monotonic() - began) / SHARE))

    def _used(self) -> float:
        used = self._command.cpu_used()
        if self._before is not None and self._mark is not None and self._mark == self._processes.starts:
            now = self._sandbox_seconds() or 0.0
            used = max(used, now - self._before - SLACK_SECONDS)
        return used

    def _sandbox_seconds(self) -> float | None:
        """Of all but the guest, where nothing of the guest's own is at work beside it."""
        total = self._processes.cgroup.cpu_seconds()
        return None if total is None or self._processes.disk is not None else total - time.process_time()
