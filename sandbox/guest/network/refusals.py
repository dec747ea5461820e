"""Connections and requests that were refused or cut, reported in the result of the command that made them.

The socket leads to the command: its inode in /proc/net/tcp, the process that holds that, the runner above the process. A process
that made itself unreadable cannot be found: then the refusal is reported with every running command, as one that may be its own.
"""

from __future__ import annotations

import os
import socket

from ..watch.procfs import read_parents, read_socket_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.processes import Processes
    from ..loop.reactor import Reactor
    from ..loop.workers import Workers

    # The client's address and the one it connected to; None if the connection is gone already.
    Ends = tuple[tuple[str, int], tuple[str, int]] | None
    # Called before the client learns of a refusal or a cut: (both ends, {code, host, port, why, kind, about}, then).
    ReportRefusal = Callable[[Ends, dict[str, Any], Callable[[], None]], None]

# Notices for one command: a scan of ports must not make its result endless.
MOST_NOTICES = 10
# More than a process may have.
MOST_DESCRIPTORS = 1 << 30


class Refusals:
    """Report each refusal with the commands it concerns. Only for the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers

    def report(self, ends: Ends, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        """Report that a connection, or a request on it, was refused or cut.

        ``refusal`` has the notice's ``code``, ``host``, ``port``, ``why`` and ``kind``. ``then`` is called once the notice is
        stored: the client must not learn of the refusal before, because its command may end by it.
        """

        def look() -> None:  # as the sandbox's user, who may see the descriptors of its processes
            try:
                owner = _owner(ends)
            except OSError:
                owner = None
            self._reactor.hand_over(lambda: found(owner))

        def found(owner: int | None) -> None:
            for command, certain in self._commands_of(owner):
                self._add_notice(command, {**refusal, "certain": certain})
            then()

        self._workers.submit(look, watching=True)

    def _commands_of(self, owner: int | None) -> list[tuple[Command, bool]]:
        """Return the commands that a process may belong to, and whether that is certain."""
        commands = [c for c in self._processes.commands.values() if not c.tree_empty and c.runner is not None]
        if owner is None:
            return [(command, len(commands) == 1) for command in commands]
        table, above = read_parents(), set()
        while owner and owner not in above:
            above.add(owner)
            owner = table.get(owner, 0)
        return [(c, True) for c in commands if c.runner is not None and c.runner.pid in above]

    def _add_notice(self, command: Command, refusal: dict[str, Any]) -> None:
        key = tuple(str(refusal.get(name) or "") for name in ("code", "host", "port", "what"))
        known = command.refusals.get(key)
        if known is not None:
            known["count"] += 1
            return
        if len(command.refusals) >= MOST_NOTICES:
            return
        notice = {"id": command.id, **refusal, "count": 1}
        command.refusals[key] = notice
        if command.answered:  # its caller has the result already: the notice goes into that of another call
            notice["elsewhere"] = True
            self._processes.pending_notices.add(notice)


def make_refusal(code: str, host: str, port: int, answer: dict[str, object]) -> dict[str, object]:
    """Return what to report of the host's answer ("denied" or "failed") to the question for a connection."""
    why = str(answer.get("denied") or answer.get("failed") or "the host did not say why")
    details = {name: str(answer.get(name) or "") for name in ("kind", "about")}
    return {"code": code, "host": host, "port": port, "why": why, **details}


def ends_of(sock: socket.socket) -> Ends:
    """Return both addresses of a connection that was accepted here, the client's first."""
    try:
        return sock.getpeername(), sock.getsockname()
    except OSError:  # reset meanwhile
        return None


def _owner(ends: Ends) -> int | None:
    """Return the id of a process that holds the client's end of a connection, or None if no such process is visible."""
    inode = None if ends is None else inode_of(*ends)
    if inode is None:
        return None
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return next((int(pid) for pid in pids if inode in read_socket_inodes(pid, MOST_DESCRIPTORS)), None)


def inode_of(near: tuple[str, int], far: tuple[str, int]) -> str | None:
    """Return the inode of the IPv4 connection between two addresses, or None. Raises OSError.

    Addresses and ports are compared, as other connections may share a port.
    """
    ends = [_table_form(near), _table_form(far)]
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


def _table_form(address: tuple[str, int]) -> str:
    """Return an address as /proc/net/tcp lists it."""
    return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"
