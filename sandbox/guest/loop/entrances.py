"""The ways in which a host can reach a kept sandbox.

The first is the guest's standard input and output. A host that was accepted there may go on past the engine, by pipes of its own
(see ``shortcut``). An engine that is restarted closes that input for good although its containers
stay (live-restore), and an orchestrator that is stopped while it is attached blocks the output. So there is a second one, the door:
the engine starts a relay in the container (``relay``), which hands its own standard input and output over and waits.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from ..protocol.constants import DOOR
from ..protocol.reattach import Call, CallFinder
from ..watch.procfs import read_stat
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Receives the input of an entrance: bytes, which are valid until it returns, calls, and None at its end.
    OnInput = Callable[["Entrance", "bytes | memoryview | Call | None"], None]

READ_BYTES = 256 * 1024
MOST_VISITORS = 4
_HANDOVER_SECONDS = 1.0
# For all entrances: what is read is used before the next read.
_BUFFER = memoryview(bytearray(READ_BYTES))


class Entrance:
    """One pipe to a host. ``in_fd`` is read until its end, even while the guest serves a host on another pipe.

    ``visitor`` is the connection of the relay that handed the pipe over. Without a ``token`` nobody calls there: the pipe is
    that of one host, and ends with it.
    """

    def __init__(
        self,
        reactor: Reactor,
        token: bytes | None,
        in_fd: int,
        out_fd: int,
        on_input: OnInput,
        visitor: socket.socket | None = None,
    ) -> None:
        self.out_fd = out_fd
        self.ends_with_host = token is None
        self._in_fd = in_fd
        self._reactor = reactor
        self._calls = None if token is None else CallFinder(token)
        self._on_input = on_input
        self._visitor = visitor
        os.set_blocking(in_fd, False)
        os.set_blocking(out_fd, False)
        reactor.watch(in_fd, select.EPOLLIN, self._readable)

    def beside(self, in_fd: int, out_fd: int) -> Entrance:
        """Return another entrance to the same guest, for one host."""
        return Entrance(self._reactor, None, in_fd, out_fd, self._on_input)

    def _readable(self, _: int) -> None:
        try:
            size = os.readv(self._in_fd, [_BUFFER])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._on_input(self, None)
            self.close()
        elif self._calls is None:
            self._on_input(self, _BUFFER[:size])
        else:
            for piece in self._calls.feed(bytes(_BUFFER[:size])):
                self._on_input(self, piece)

    def close(self) -> None:
        """Read no more, and close what is not the guest's own standard output."""
        self._reactor.unwatch(self._in_fd)
        if self._visitor is not None or self.ends_with_host:
            os.close(self.out_fd)
        if self._visitor is not None:
            self._visitor.close()  # the relay ends
        os.close(self._in_fd)


class Door:
    """Accept relays: root processes that the engine started, which have no parent in the sandbox."""

    def __init__(self, reactor: Reactor, token: bytes, on_input: OnInput) -> None:
        self._reactor = reactor
        self._token = token
        self._on_input = on_input
        self._visitors: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(DOOR)
        self._listener.listen(MOST_VISITORS)
        self._listener.setblocking(False)
        reactor.watch(self._listener.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, _: int) -> None:
        try:
            visitor = self._listener.accept()[0]
        except OSError:
            return
        self._visitors = [each for each in self._visitors if each.fileno() >= 0]
        try:
            pid, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            relay = read_stat(pid)
            from_outside = relay is not None and relay.parent == 0
            if uid != 0 or not from_outside or len(self._visitors) >= MOST_VISITORS:
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
        Entrance(self._reactor, self._token, fds[0], fds[1], self._on_input, visitor)
