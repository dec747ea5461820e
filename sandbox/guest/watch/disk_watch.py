"""Bound a disk that the kernel does not bound: measure what is used, and stop commands that write past the limit."""

from __future__ import annotations

import os
import select

from ..builtin import socket
from ..loop.reactor import Reactor
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How much further usage may grow before commands are stopped again: room to delete and to look around in a full sandbox.
SLACK_BYTES = 16 << 20
RESTART_SECONDS = 0.5
_PACKET_BYTES = 256


class DiskWatch:
    """Measures folders with a program of its own (see ``disk_usage``). Lives in the reactor's thread.

    ``disk`` is {"watched": folders, "limit": bytes}. If the root is watched, what is in it at the start does not count; the other
    folders begin empty. ``interpreter`` starts the program, ``on_start`` gets its pid, ``stop_commands`` is called when usage
    passes the limit.
    """

    def __init__(
        self,
        reactor: Reactor,
        disk: dict[str, Any],
        interpreter: tuple[str, ...],
        on_start: Callable[[int], None],
        stop_commands: Callable[[], None],
    ) -> None:
        self.limit = int(disk["limit"])
        self.used = 0
        self._reactor = reactor
        self._folders = [str(folder) for folder in disk["watched"]]
        self._interpreter = interpreter
        self._on_start = on_start
        self._stop_commands = stop_commands
        self._initial_sizes: list[int] | None = None
        self._tolerated = self.limit
        self._socket: socket.socket | None = None
        self._start()

    def refuse_when_full(self, path: str) -> None:
        """Raise Fault ``no_space`` if more is used than the limit."""
        if self.used > self.limit:
            raise Fault("no_space", path=path)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.set_inheritable(theirs.fileno(), True)
        argv = [*self._interpreter, "-m", f"{__package__}.disk_usage", str(theirs.fileno()), *self._folders]
        try:
            self._on_start(os.posix_spawn(argv[0], argv, os.environ))
        except OSError:  # no process can be created just now
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
            packet = self._socket.recv(_PACKET_BYTES)
        except OSError:
            packet = b""
        sizes = packet.split()
        if len(sizes) == len(self._folders) and all(size.isdigit() for size in sizes):
            self._measured([int(size) for size in sizes])
            return
        self._reactor.unwatch(self._socket.fileno())  # the program was killed
        self._socket.close()
        self._socket = None
        self._reactor.after(RESTART_SECONDS, self._start)

    def _measured(self, sizes: list[int]) -> None:
        if self._initial_sizes is None:
            self._initial_sizes = [
                size if folder == "/" else 0 for folder, size in zip(self._folders, sizes, strict=True)
            ]
        self.used = sum(max(0, size - before) for size, before in zip(sizes, self._initial_sizes, strict=True))
        if self.used <= self.limit:
            self._tolerated = self.limit
        elif self.used > self._tolerated:
            self._tolerated = self.used + SLACK_BYTES
            self._stop_commands()
