"""Connections and requests that were refused or cut, told in the answer of the command that asked for them.

Which it was follows from the socket: its inode in /proc/net/tcp, the process that holds it, the runner above that. A process that
made itself unreadable cannot be found: then every running command is told that it may have been it.
"""

from __future__ import annotations

import os
import socket

from ..watch.process_tree import parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.processes import Processes
    from ..loop.reactor import Reactor
    from ..loop.workers import Workers

    # The client's address and that which it connected to; None where the connection is gone already.
    Ends = tuple[tuple[str, int], tuple[str, int]] | None
    # Told of what was refused or cut before the client is: (both ends, {code, host, port, why, kind, about}, then).
    Noted = Callable[[Ends, dict[str, Any], Callable[[], None]], None]

# Of one command; a scan of ports is no reason for an answer without end.
MOST_TOLD = 10


class Refusals:
    """Notes each refusal with the commands it concerns. ``note`` is for the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers

    def note(self, ends: Ends, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        """A connection was refused or cut, or a request on it: the notice's ``code``, ``host``, ``port``, ``why`` and ``kind``.

        ``then`` is called when the commands it concerns know, and before any of them can end by it.
        """

        def look() -> None:  # as the sandbox's user, who may see what its processes hold
            try:
                owner = _owner(ends)
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
        key = tuple(str(refusal.get(name) or "") for name in ("code", "host", "port", "what"))
        known = command.refusals.get(key)
        if known is not None:
            known["count"] += 1
            return
        if len(command.refusals) >= MOST_TOLD:
            return
        notice = {"id": command.id, **refusal, "count": 1}
        command.refusals[key] = notice
        if command.answered:  # its caller has an answer already; this is told in one to another call
            notice["elsewhere"] = True
            self._processes.endings.tell(notice)


def ends_of(sock: socket.socket) -> Ends:
    """The ends of a connection that was accepted here, the client's first."""
    try:
        return sock.getpeername(), sock.getsockname()
    except OSError:  # reset meanwhile
        return None


def _owner(ends: Ends) -> int | None:
    """A process that holds the client's end of a connection; None where none can be seen to."""
    inode = None if ends is None else inode_of(*ends)
    if inode is None:
        return None
    link = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if name.isdigit() and _holds(name, link):
            return int(name)
    return None


def inode_of(near: tuple[str, int], far: tuple[str, int]) -> str | None:
    """The inode of the IPv4 connection between both whole addresses: others may share a port. Raises OSError."""
    ends = [_as_listed(near), _as_listed(far)]
    for table, mapped in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        wanted = [mapped + end for end in ends]
        try:
            with open(f"/proc/net/{table}", encoding="ascii", errors="replace") as lines:
                for line in lines:
                    words = line.split()
                    if len(words) > 9 and words[1:3] == wanted:
                        return words[9]
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return None


def _as_listed(address: tuple[str, int]) -> str:
    return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"


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
