"""Names that the host serves: each has a loopback address of its own, where the guest listens and asks the host for connections.

The names stand in /etc/hosts. The sockets are the guest's, made before the first command runs: no command can close one, and none
can listen at its address. Lives in the reactor's thread.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .reactor import Reactor
    from .tunnels import Tunnels

BACKLOG = 128
# SO_LINGER with no time: closing resets the connection, so that a refusal is not taken for an end.
RESET = struct.pack("ii", 1, 0)


class Names:
    """Listens at every address and port of ``names`` (name, address, ports); ``tunnels`` makes the tunnels when they are needed."""

    def __init__(
        self, reactor: Reactor, tunnels: Callable[[], Tunnels], names: Iterable[tuple[str, str, list[int]]]
    ) -> None:
        self.reactor = reactor
        self._tunnels = tunnels
        self.sockets: list[socket.socket] = []
        for name, address, ports in names:
            for port in ports:
                self._listen(name, address, port)

    def _listen(self, name: str, address: str, port: int) -> None:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, port))
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            print(f"{name}:{port} cannot be reached in this sandbox: {error}", file=sys.stderr)
            return
        self.sockets.append(made)
        self.reactor.watch(made.fileno(), select.EPOLLIN, lambda _: self._accept(made, name, port))

    def _accept(self, listener: socket.socket, name: str, port: int) -> None:
        for _i in range(BACKLOG):
            try:
                sock, _ = listener.accept()
            except OSError:  # none left, or no descriptor for it
                return
            sock.setblocking(False)
            Caller(self.reactor, self._tunnels(), sock).ask(name, port)


class Caller:
    """A connection to a name from its first moment to the answer whether it goes on."""

    def __init__(self, reactor: Reactor, tunnels: Tunnels, sock: socket.socket) -> None:
        self._reactor = reactor
        self._tunnels = tunnels
        self._socket = sock
        self._channel: int | None = None
        reactor.watch(sock.fileno(), 0, self._hung_up)  # what it sends waits in its socket

    def ask(self, name: str, port: int) -> None:
        """Ask the host, which knows who serves the name."""
        self._channel = self._tunnels.ask(name, port, self._answered)

    def _answered(self, fields: dict[str, object]) -> None:
        if self._socket.fileno() < 0:
            return
        self._reactor.unwatch(self._socket.fileno())
        if fields.get("open") is True and self._channel is not None:
            self._tunnels.join(self._channel, self._socket, b"")
        else:
            self._reset()

    def _hung_up(self, _: int) -> None:
        self._reactor.unwatch(self._socket.fileno())
        self._reset()
        if self._channel is not None:
            self._tunnels.forget(self._channel)

    def _reset(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError:  # not connected any more
            pass
        self._socket.close()
