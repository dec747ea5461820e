"""Connections and requests that were refused or cut, reported in the result of the command that made them.

The socket leads to the command: its inode in /proc/net/tcp, the process that holds that, the runner above the process. A process
that made itself unreadable cannot be found: then the refusal is reported with every running command, as one that may be its own.
"""

from __future__ import annotations

import os
import socket

from ..protocol.constants import BROWSER_UID
from ..watch.procfs import read_parents, read_socket_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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
# Stands for the browser among ids of processes.
BROWSER = -1
# More than a process may have.
MOST_DESCRIPTORS = 1 << 30


class Refusals:
    """Report each refusal with the commands it concerns. Only for the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._waiting: list[tuple[Ends, dict[str, Any], Callable[[], None]]] = []
        self._looking = False

    def report(self, ends: Ends, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        """Report that a connection, or a request on it, was refused or cut.

        ``refusal`` has the notice's ``code``, ``host``, ``port``, ``why`` and ``kind``. ``then`` is called once the notice is
        stored: the client must not learn of the refusal before, because its command may end by it.
        """
        self._waiting.append((ends, refusal, then))
        if not self._looking:
            self._look()

    def _look(self) -> None:
        """Find the owners of all refused connections that wait, in one worker: thousands may come at once."""
        waiting, self._waiting = self._waiting, []
        self._looking = True

        def work() -> None:  # as the sandbox's user, who may see the descriptors of its processes
            try:
                owners = _owners([ends for ends, _, _ in waiting])
            except OSError:
                owners = [None] * len(waiting)
            self._reactor.hand_over(lambda: finish(owners))

        def finish(owners: list[int | None]) -> None:
            """Add the notices; the owner ``BROWSER`` is the browser, whose descriptors nobody may see."""
            self._looking = False
            if self._waiting:
                self._look()
            parents = read_parents() if any(owner and owner > 0 for owner in owners) else {}
            for owner, (_, refusal, then) in zip(owners, waiting, strict=True):
                for command, certain in self._commands_of(owner, parents):
                    self._add_notice(command, {**refusal, "certain": certain})
                then()

        self._workers.submit(work, watching=True)

    def _commands_of(self, owner: int | None, parents: dict[int, int]) -> list[tuple[Command, bool]]:
        """Return the commands that a process may belong to, and whether that is certain."""
        commands = [c for c in self._processes.commands.values() if not c.tree_empty and c.runner is not None]
        if owner == BROWSER:
            browser = self._processes.browser_command
            return [] if browser is None else [(browser, True)]
        if owner is None:
            return [(command, len(commands) == 1) for command in commands]
        above = set()
        while owner and owner not in above:
            above.add(owner)
            owner = parents.get(owner, 0)
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


def _owners(all_ends: list[Ends]) -> list[int | None]:
    """Return, for each connection, the id of a process that holds its client's end, or None if no such process is visible.

    It is BROWSER for a connection of the browser's user.
    """
    sockets = sockets_of([ends for ends in all_ends if ends is not None])
    wanted = {inode for inode, uid in sockets.values() if uid != BROWSER_UID}
    holders: dict[str, int] = {inode: BROWSER for inode, uid in sockets.values() if uid == BROWSER_UID}
    if wanted:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for inode in wanted.intersection(read_socket_inodes(pid, MOST_DESCRIPTORS)):
                holders.setdefault(inode, int(pid))
    return [holders.get(sockets[ends][0]) if ends in sockets else None for ends in all_ends]


def sockets_of(connections: Iterable[tuple[tuple[str, int], tuple[str, int]]]) -> dict[Ends, tuple[str, int]]:
    """Return inode and uid of those IPv4 connections, each (near end, far end), that the kernel lists. Raises OSError.

    Addresses and ports are compared, as other connections may share a port.
    """
    found: dict[Ends, tuple[str, int]] = {}
    for table, mapped in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        wanted = {tuple(mapped + _table_form(end) for end in ends): ends for ends in connections if ends not in found}
        try:
            with open(f"/proc/net/{table}", encoding="ascii", errors="replace") as lines:
                for line in lines:
                    words = line.split()
                    ends = wanted.get(tuple(words[1:3]))
                    if ends is not None and len(words) > 9:
                        found[ends] = words[9], int(words[7])
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return found


def _table_form(address: tuple[str, int]) -> str:
    """Return an address as /proc/net/tcp lists it."""
    return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"
