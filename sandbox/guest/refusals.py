"""Refused connections, told in the answer of the command that asked for them.

Which it was follows from the socket: its inode in /proc/net/tcp, the process that holds it, the runner above that. A process that
made itself unreadable cannot be found: then every running command is told that it may have been it.
"""

from __future__ import annotations

import os

from .proctree import parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .commands import Command
    from .processes import Processes
    from .reactor import Reactor
    from .workers import Workers

# Of one command; a scan of ports is no reason for an answer without end.
MOST_TOLD = 10


class Refusals:
    """Notes each refusal with the commands it concerns. ``note`` is for the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers

    def note(self, client_port: int, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        """A connection was refused: its ``host``, ``port`` and ``why``, and the ``kind`` of that.

        ``then`` is called when the commands it concerns know, and before any of them can end by it.
        """

        def look() -> None:  # as the sandbox's user, who may see what its processes hold
            try:
                owner = _owner(client_port)
            except OSError:
                owner = None
            self._reactor.hand_over(lambda: found(owner))

        def found(owner: int | None) -> None:
            for command, certain in self._concerned(owner):
                self._tell(command, {**refusal, "certain": certain})
            then()

        self._workers.submit(look, watching=True)

    def _concerned(self, owner: int | None) -> list[tuple[Command, bool]]:
        commands = [c for c in self._processes.commands.values() if not c.tree_empty and c.runner is not None]
        if owner is None:
            return [(command, len(commands) == 1) for command in commands]
        table, above = parents(), set()
        while owner and owner not in above:
            above.add(owner)
            owner = table.get(owner, 0)
        return [(c, True) for c in commands if c.runner is not None and c.runner.pid in above]

    def _tell(self, command: Command, refusal: dict[str, Any]) -> None:
        known = command.refusals.get((refusal["host"], refusal["port"]))
        if known is not None:
            known["count"] += 1
            return
        if len(command.refusals) >= MOST_TOLD:
            return
        notice = {"code": "network_denied", "id": command.id, **refusal, "count": 1}
        command.refusals[refusal["host"], refusal["port"]] = notice
        if command.answered:  # its caller has an answer already; this is told in one to another call
            notice["elsewhere"] = True
            self._processes.endings.tell(notice)


def _owner(client_port: int) -> int | None:
    """A process that holds the near end of the connection from ``client_port``; None where none can be seen to."""
    inode = _inode(client_port)
    if inode is None:
        return None
    link = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if name.isdigit() and _holds(name, link):
            return int(name)
    return None


def _inode(client_port: int) -> str | None:
    near = f"0100007F:{client_port:04X}"
    with open("/proc/net/tcp", encoding="ascii", errors="replace") as table:
        for line in table:
            words = line.split()
            if len(words) > 9 and words[1] == near:
                return words[9]
    return None


def _holds(pid: str, link: str) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # gone, or not to be read
        return False
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") == link:
                return True
        except OSError:  # closed meanwhile
            continue
    return False
