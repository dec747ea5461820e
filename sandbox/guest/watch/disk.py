"""A disk that the kernel does not bound: its size is measured, and what writes past it is ended."""

from __future__ import annotations

import os
import select
import socket

from ..loop.context import Place
from ..loop.reactor import Reactor
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..commands.processes import Processes

# How much further usage may grow before commands are ended once more: room to delete and to look around in a full sandbox.
SLACK_BYTES = 16 << 20
RESTART_SECONDS = 0.5
_PACKET_BYTES = 256


class DiskWatch:
    """Lives in the reactor's thread. ``disk`` is {"watched": folders, "limit": bytes}.

    Where the root is watched, what is in it at the start does not count; the other folders begin empty.
    """

    def __init__(self, reactor: Reactor, processes: Processes, place: Place, disk: dict[str, Any]) -> None:
        self.limit = int(disk["limit"])
        self.used = 0
        self._reactor = reactor
        self._processes = processes
        self._folders = [str(folder) for folder in disk["watched"]]
        self._interpreter = place.interpreter
        self._before: list[int] | None = None
        self._tolerated = self.limit
        self._socket: socket.socket | None = None
        self._start()

    def refuse_when_full(self, path: str) -> None:
        """Raise Fault ``no_space`` when more is used than may be."""
        if self.used > self.limit:
            raise Fault("no_space", path=path)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        argv = [*self._interpreter, "-m", f"{__package__}.disk_usage", str(theirs.fileno()), *self._folders]
        try:
            self._processes.spawner.pids.add(os.posix_spawn(argv[0], argv, os.environ))
        except OSError:  # no process to be had just now
            ours.close()
            self._reactor.after(RESTART_SECONDS, self._start)
            return
        finally:
            theirs.close()
        self._socket = ours
        self._reactor.watch(ours.fileno(), select.EPOLLIN, self._readable)

    def _readable(self, _: int) -> None:
        if self._socket is None:
            return
        try:
            said = self._socket.recv(_PACKET_BYTES)
        except OSError:
            said = b""
        sizes = said.split()
        if len(sizes) == len(self._folders) and all(size.isdigit() for size in sizes):
            self._measured([int(size) for size in sizes])
            return
        self._reactor.unwatch(self._socket.fileno())  # it was killed
        self._socket.close()
        self._socket = None
        self._reactor.after(RESTART_SECONDS, self._start)

    def _measured(self, sizes: list[int]) -> None:
        if self._before is None:
            self._before = [size if folder == "/" else 0 for folder, size in zip(self._folders, sizes, strict=True)]
        self.used = sum(max(0, size - before) for size, before in zip(sizes, self._before, strict=True))
        if self.used <= self.limit:
            self._tolerated = self.limit
        elif self.used > self._tolerated:
            self._tolerated = self.used + SLACK_BYTES
            for command in list(self._processes.commands.values()):
                if not command.tree_empty and not command.stopping:
                    self._processes.stop(command, "disk", lambda _: None)
