"""The ways by which a host can come to a kept sandbox.

The first is its standard input and output. An engine that is restarted in good order closes that input for good though its
containers stay (live-restore), and an orchestrator that is stopped while it is attached holds up the output. So there is a door as
well: the engine starts a relay in the container (``relay``), which hands its own standard input and output over and waits.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from ..protocol.reattach import Call, CallFinder
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Told what came in by an entrance: bytes, calls, None at its end.
    Taker = Callable[["Entrance", "bytes | Call | None"], None]

# In the abstract namespace of the sandbox's own network; bound before the first command runs, so none can take it.
DOOR = "\0gamebox-door"
READ_BYTES = 256 * 1024
MOST_VISITORS = 4
_HANDOVER_SECONDS = 1.0


class Entrance:
    """One pipe with a host, or without: ``in_fd`` is read until its end, whoever is served."""

    def __init__(
        self, reactor: Reactor, token: bytes, in_fd: int, out_fd: int, take: Taker, visitor: socket.socket | None = None
    ) -> None:
        self.out_fd = out_fd
        self._in_fd = in_fd
        self._reactor = reactor
        self._calls = CallFinder(token)
        self._take = take
        self._visitor = visitor
        os.set_blocking(in_fd, False)
        os.set_blocking(out_fd, False)
        reactor.watch(in_fd, select.EPOLLIN, self._readable)

    def _readable(self, _: int) -> None:
        try:
            data = os.read(self._in_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            for piece in self._calls.feed(data):
                self._take(self, piece)
            return
        self._reactor.unwatch(self._in_fd)
        self._take(self, None)
        if self._visitor is not None:
            os.close(self.out_fd)
            self._visitor.close()  # the relay ends
        os.close(self._in_fd)


class Door:
    """Lets relays in: root processes that the engine started, which have no parent in the sandbox."""

    def __init__(self, reactor: Reactor, token: bytes, take: Taker) -> None:
        self._reactor = reactor
        self._token = token
        self._take = take
        self._visitors: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(DOOR)
        self._listener.listen(MOST_VISITORS)
        self._listener.setblocking(False)
        reactor.watch(self._listener.fileno(), select.EPOLLIN, self._knock)

    def _knock(self, _: int) -> None:
        try:
            visitor = self._listener.accept()[0]
        except OSError:
            return
        self._visitors = [each for each in self._visitors if each.fileno() >= 0]
        try:
            pid, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != 0 or _parent(pid) != 0 or len(self._visitors) >= MOST_VISITORS:
                raise PermissionError
            visitor.settimeout(_HANDOVER_SECONDS)
            fds = socket.recv_fds(visitor, 16, 2)[1]
            if len(fds) != 2:
                raise ConnectionError
        except OSError:
            visitor.close()
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        self._visitors.append(visitor)
        Entrance(self._reactor, self._token, fds[0], fds[1], self._take, visitor)


def _parent(pid: int) -> int:
    """The parent of a process; 0 for one that was put into the sandbox from outside."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        after_name = bytes(file.read()).rsplit(b")", 1)[1]
    return int(after_name.split()[1])
