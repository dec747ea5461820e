"""Names of services that the host provides.

Each name has a loopback address in /etc/hosts, where the guest listens and asks the host for connections. The sockets are the
guest's, made before the first command runs: no command can close one or listen at its address. Runs in the reactor's thread.
"""

from __future__ import annotations

import select
import socket
import sys
from functools import partial

from ..protocol.constants import REFUSED, UNREACHED
from . import handshakes
from .proxy import READ_BYTES, REFUSAL_SECONDS, most_clients
from .refusals import ends_of, make_refusal
from .tunnels import RESET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..loop.reactor import Reactor, Timer
    from .refusals import ReportRefusal
    from .tunnels import Tunnels

BACKLOG = 128
HTTP_PORT = 80


class ServiceNames:
    """Listen at every address and port of ``names`` (name, address, ports). ``tunnels`` makes the tunnels when they are needed.

    ``report_refusal`` is called for each refused connection before its client learns of it.
    """

    def __init__(
        self,
        reactor: Reactor,
        tunnels: Callable[[], Tunnels],
        report_refusal: ReportRefusal,
        names: Iterable[tuple[str, str, list[int]]],
    ) -> None:
        self.reactor = reactor
        self.tunnels = tunnels
        self.report_refusal = report_refusal
        self.sockets: list[socket.socket] = []
        self.callers: set[Caller] = set()
        self._most = most_clients()
        for name, address, ports in names:
            for port in ports:
                self._listen(name, address, port)

    def _listen(self, name: str, address: str, port: int) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            print(f"{name}:{port} cannot be reached in this sandbox: {error}", file=sys.stderr)
            return
        self.sockets.append(listener)
        self.reactor.watch(listener.fileno(), select.EPOLLIN, lambda _: self._accept(listener, name, port))

    def _accept(self, listener: socket.socket, name: str, port: int) -> None:
        for _i in range(BACKLOG):
            try:
                sock, _ = listener.accept()
            except OSError:  # no more callers, or no descriptor for one
                return
            if len(self.callers) >= self._most:
                sock.close()
                continue
            sock.setblocking(False)
            caller = Caller(self, sock, name, port)
            self.callers.add(caller)
            caller.ask()


class Caller:
    """A connection to a name, until it is joined to a tunnel or refused."""

    def __init__(self, names: ServiceNames, sock: socket.socket, name: str, port: int) -> None:
        self._names = names
        self._reactor = names.reactor
        self._tunnels = names.tunnels()
        self._socket = sock
        self._destination = (name, port)
        self._channel: int | None = None
        self._reactor.watch(sock.fileno(), 0, self._hung_up)  # what it sends waits in its socket

    def ask(self) -> None:
        """Ask the host for a connection to the name's service."""
        self._channel = self._tunnels.ask(*self._destination, self._on_answer)

    def _on_answer(self, fields: dict[str, object]) -> None:
        if self._socket.fileno() < 0:
            return
        if fields.get("open") is True and self._channel is not None:
            self._reactor.unwatch(self._socket.fileno())
            self._names.callers.discard(self)
            self._tunnels.join(self._channel, self._socket, b"")
            return
        name, port = self._destination
        denied = "denied" in fields
        refusal = make_refusal("network_denied" if denied else "service_failed", name, port, fields)
        message = f"{name}:{port}{REFUSED if denied else UNREACHED}{refusal['why']}"
        turn_down = partial(self._turn_down, 403 if denied else 502, message)
        self._names.report_refusal(ends_of(self._socket), refusal, turn_down)

    def _turn_down(self, status: int, message: str) -> None:
        """Answer a client that speaks HTTP, and wait until it has read the answer; reset any other connection."""
        if self._socket.fileno() < 0:
            return
        self._reactor.unwatch(self._socket.fileno())
        try:
            if self._destination[1] != HTTP_PORT:
                raise ConnectionResetError
            self._socket.send(handshakes.http_answer(status, message))  # short: it fits an empty socket
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._reset()
            return
        late = self._reactor.after(REFUSAL_SECONDS, lambda: self._end(late))
        self._reactor.watch(self._socket.fileno(), select.EPOLLIN, lambda _: self._drain(late))

    def _drain(self, late: Timer) -> None:
        """Read on what the client still sends: else the connection would be reset before it read the answer."""
        try:
            if self._socket.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._end(late)

    def _end(self, late: Timer) -> None:
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
