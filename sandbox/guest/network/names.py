"""Names that the host serves: each has a loopback address of its own, where the guest listens and asks the host for connections.

The names stand in /etc/hosts. The sockets are the guest's, made before the first command runs: no command can close one, and none
can listen at its address. Lives in the reactor's thread.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

from . import greetings
from .proxy import PARTING_SECONDS, READ_BYTES, most_clients
from .refusals import ends_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..loop.reactor import Reactor, Timer
    from .refusals import Noted
    from .tunnels import Tunnels

BACKLOG = 128
HTTP_PORT = 80
# SO_LINGER with no time: closing resets the connection, so that a refusal is not taken for an end.
RESET = struct.pack("ii", 1, 0)


class Names:
    """Listens at every address and port of ``names`` (name, address, ports); ``tunnels`` makes the tunnels when they are needed.

    ``noted`` is told of each connection that is refused, before its client is.
    """

    def __init__(
        self, reactor: Reactor, tunnels: Callable[[], Tunnels], noted: Noted, names: Iterable[tuple[str, str, list[int]]]
    ) -> None:  # fmt: skip
        self.reactor = reactor
        self.tunnels = tunnels
        self.noted = noted
        self.sockets: list[socket.socket] = []
        self.callers: set[Caller] = set()
        self._most = most_clients()
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
            if len(self.callers) >= self._most:
                sock.close()
                continue
            sock.setblocking(False)
            caller = Caller(self, sock, name, port)
            self.callers.add(caller)
            caller.ask()


class Caller:
    """A connection to a name from its first moment to the answer whether it goes on."""

    def __init__(self, names: Names, sock: socket.socket, name: str, port: int) -> None:
        self._names = names
        self._reactor = names.reactor
        self._tunnels = names.tunnels()
        self._socket = sock
        self._wanted = (name, port)
        self._channel: int | None = None
        self._reactor.watch(sock.fileno(), 0, self._hung_up)  # what it sends waits in its socket

    def ask(self) -> None:
        """Ask the host, which knows who serves the name."""
        self._channel = self._tunnels.ask(*self._wanted, self._answered)

    def _answered(self, fields: dict[str, object]) -> None:
        if self._socket.fileno() < 0:
            return
        if fields.get("open") is True and self._channel is not None:
            self._reactor.unwatch(self._socket.fileno())
            self._names.callers.discard(self)
            self._tunnels.join(self._channel, self._socket, b"")
            return
        name, port = self._wanted
        denied = "denied" in fields
        why = str(fields.get("denied") or fields.get("failed") or "the host did not say why")
        refusal: dict[str, object] = {"code": "network_denied" if denied else "service_failed", "host": name, "port": port}
        refusal |= {"why": why, **{key: str(fields.get(key) or "") for key in ("kind", "about")}}
        words = f"{name}:{port} {'is refused by the sandbox' if denied else 'was not reached'}: {why}"
        self._names.noted(ends_of(self._socket), refusal, lambda: self._turn_down(403 if denied else 502, words))

    def _turn_down(self, status: int, words: str) -> None:
        """Say so where clients speak HTTP, and wait until they have read it; cut what speaks anything else."""
        if self._socket.fileno() < 0:
            return
        self._reactor.unwatch(self._socket.fileno())
        try:
            if self._wanted[1] != HTTP_PORT:
                raise ConnectionResetError
            self._socket.send(greetings.http_answer(status, words))  # short: it fits an empty socket
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._reset()
            return
        late = self._reactor.after(PARTING_SECONDS, lambda: self._parted(late))
        self._reactor.watch(self._socket.fileno(), select.EPOLLIN, lambda _: self._parting(late))

    def _parting(self, late: Timer) -> None:
        """What the client still sends is read: else it would be reset before it saw the answer."""
        try:
            if self._socket.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._parted(late)

    def _parted(self, late: Timer) -> None:
        late.cancel()
        if self._socket.fileno() >= 0:
            self._reactor.unwatch(self._socket.fileno())
            self._close()

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
        self._close()

    def _close(self) -> None:
        self._names.callers.discard(self)
        self._socket.close()
