"""The way out for programs in the sandbox: an HTTP and SOCKS5 proxy on loopback that asks the host for every connection.

The socket is the guest's own: no command can close it, take its place or see what goes through it. Runs in the reactor's thread.
"""

from __future__ import annotations

import resource
import select
import socket
from functools import partial

from ..protocol.constants import REFUSED, UNREACHED
from . import handshakes
from .handshakes import HandshakeError, ProxyRequest
from .refusals import ends_of, make_refusal
from .tunnels import Tunnels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..loop.reactor import Reactor
    from .refusals import ReportRefusal

# At most a quarter of the guest's descriptors: it needs the others to answer its host.
MOST_CLIENTS = 512
# A client that has not sent its request by then is cut: it occupies a descriptor of the guest.
HANDSHAKE_SECONDS = 30.0
READ_BYTES = 16 * 1024
# A client that was refused has this long to read why.
REFUSAL_SECONDS = 2.0


def most_clients() -> int:
    """Return how many clients may wait for the host's answer at once."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CLIENTS if descriptors == resource.RLIM_INFINITY else min(MOST_CLIENTS, descriptors // 4)


class Proxy:
    """Serve the clients of ``listener``. Calls ``report_refusal`` for each refused connection before its client learns of it."""

    def __init__(
        self, reactor: Reactor, tunnels: Tunnels, report_refusal: ReportRefusal, listener: socket.socket
    ) -> None:
        self.reactor = reactor
        self.tunnels = tunnels
        self.report_refusal = report_refusal
        self.clients: set[Client] = set()
        self._most = most_clients()
        self._socket = listener
        reactor.watch(self._socket.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, _: int) -> None:
        for _i in range(64):
            try:
                sock, _client = self._socket.accept()
            except OSError:  # no more clients, or no descriptor for one
                return
            if len(self.clients) >= self._most:
                sock.close()
                continue
            sock.setblocking(False)
            self.clients.add(Client(self, sock))

    def close(self) -> None:
        """Stop listening."""
        self.reactor.unwatch(self._socket.fileno())
        self._socket.close()

    def remove(self, client: Client) -> None:
        """Forget a client that is connected or gone."""
        self.clients.discard(client)


class Client:
    """One connection from its first byte until it is joined to a tunnel or refused."""

    def __init__(self, proxy: Proxy, sock: socket.socket) -> None:
        self._proxy = proxy
        self._socket = sock
        self._data = b""
        self._socks = False
        self._socks_greeted = False
        self._request: ProxyRequest | None = None
        self._channel: int | None = None
        self._timer = proxy.reactor.after(HANDSHAKE_SECONDS, self._late)
        proxy.reactor.watch(sock.fileno(), select.EPOLLIN, self._readable)

    def _readable(self, events: int) -> None:
        if self._request is not None:  # it hung up before the host answered
            if events & (select.EPOLLHUP | select.EPOLLERR):
                self._close()
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        self._data += data
        try:
            self._advance()
        except HandshakeError as error:
            self._refuse(error.answer)

    def _advance(self) -> None:
        self._socks = self._socks or self._data[0] in (4, 5)
        if self._socks and not self._socks_greeted:
            methods = handshakes.parse_socks_methods(self._data)
            if methods is None:
                return
            answer, used = methods
            self._data = self._data[used:]
            self._socks_greeted = True
            self._send(answer)
        parse = handshakes.parse_socks_request if self._socks else handshakes.parse_http_request
        request = parse(self._data)
        if request is None:
            return
        self._request = request
        self._timer.cancel()
        self._proxy.reactor.watch(self._socket.fileno(), 0, self._readable)  # epoll reports a hang-up all the same
        self._channel = self._proxy.tunnels.ask(request.host, request.port, self._on_answer)

    def _on_answer(self, fields: dict[str, object]) -> None:
        request = self._request
        if request is None or self._socket.fileno() < 0:
            return
        if fields.get("open") is True:
            self._join(request)
            return
        denied = "denied" in fields
        refusal = make_refusal("network_denied", request.host, request.port, fields)
        turn_down = partial(self._turn_down, request, str(refusal["why"]), denied)
        if denied:
            self._proxy.report_refusal(ends_of(self._socket), refusal, turn_down)
        else:
            turn_down()

    def _join(self, request: ProxyRequest) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101  it was asked for
        self._proxy.reactor.unwatch(self._socket.fileno())
        self._proxy.remove(self)
        if request.tunnel:
            self._send(handshakes.socks_answer(handshakes.SOCKS_OK) if self._socks else handshakes.HTTP_OPEN)
        self._proxy.tunnels.join(channel, self._socket, request.first)

    def _turn_down(self, request: ProxyRequest, why: str, denied: bool) -> None:
        if self._socket.fileno() < 0:
            return
        if self._socks:
            code = handshakes.SOCKS_DENIED if denied else handshakes.SOCKS_UNREACHABLE
            self._refuse(handshakes.socks_answer(code))
        elif denied:
            self._refuse(handshakes.http_answer(403, f"{request.host}:{request.port}{REFUSED}{why}"))
        else:
            self._refuse(handshakes.http_answer(502, f"{request.host}:{request.port}{UNREACHED}{why}"))

    def _refuse(self, answer: bytes) -> None:
        self._send(answer)
        self._timer.cancel()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            self._close()
            return
        # Read on what the client still sends: else the connection would be reset before it read the answer.
        self._timer = self._proxy.reactor.after(REFUSAL_SECONDS, self._close)
        self._proxy.reactor.watch(self._socket.fileno(), select.EPOLLIN, self._drain)

    def _drain(self, _: int) -> None:
        try:
            if self._socket.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._close()

    def _send(self, answer: bytes) -> None:
        try:
            self._socket.send(answer)  # short: it fits an empty socket
        except OSError:  # gone; the next read notices
            pass

    def _late(self) -> None:
        self._refuse(b"" if self._socks else handshakes.http_answer(408, "nothing was asked for within 30 seconds"))

    def _close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._timer.cancel()
        self._proxy.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._proxy.remove(self)
        if self._channel is not None:
            self._proxy.tunnels.forget(self._channel)
