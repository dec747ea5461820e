"""The way out for programs in the sandbox: an HTTP and SOCKS5 proxy on loopback that asks the host for every connection.

It is the guest's own socket: no command can close it, take its place or see what goes through it. Lives in the reactor's thread.
"""

from __future__ import annotations

import resource
import select
import socket

from . import greetings
from .greetings import GreetingError, Wish
from .refusals import ends_of
from .tunnels import Tunnels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..loop.reactor import Reactor
    from .refusals import Noted

# Of a quarter of the guest's descriptors at most: the rest is for what answers its host.
MOST_CLIENTS = 512
# A client that has not said what it wants by then is cut: it holds a descriptor of the guest.
GREETING_SECONDS = 30.0
READ_BYTES = 16 * 1024
# A client that was refused may take that long to read why.
PARTING_SECONDS = 2.0


def most_clients() -> int:
    """How many clients may wait at once for what the host says."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CLIENTS if descriptors == resource.RLIM_INFINITY else min(MOST_CLIENTS, descriptors // 4)


class Proxy:
    """Serves who connects to ``listener``. ``denied`` is told of each refused connection before its client is."""

    def __init__(self, reactor: Reactor, tunnels: Tunnels, denied: Noted, listener: socket.socket) -> None:
        self.reactor = reactor
        self.tunnels = tunnels
        self.denied = denied
        self.clients: set[Client] = set()
        self._most = most_clients()
        self._socket = listener
        reactor.watch(self._socket.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, _: int) -> None:
        for _i in range(64):
            try:
                sock, _client = self._socket.accept()
            except OSError:  # none left, or no descriptor for it
                return
            if len(self.clients) >= self._most:
                sock.close()
                continue
            sock.setblocking(False)
            self.clients.add(Client(self, sock))

    def close(self) -> None:
        """Listen no more."""
        self.reactor.unwatch(self._socket.fileno())
        self._socket.close()

    def left(self, client: Client) -> None:
        """``client`` is no longer to be greeted."""
        self.clients.discard(client)


class Client:
    """One connection from its first byte to the answer whether it goes on."""

    def __init__(self, proxy: Proxy, sock: socket.socket) -> None:
        self._proxy = proxy
        self._socket = sock
        self._data = b""
        self._socks = False
        self._greeted = False
        self._wish: Wish | None = None
        self._channel: int | None = None
        self._timer = proxy.reactor.after(GREETING_SECONDS, self._late)
        proxy.reactor.watch(sock.fileno(), select.EPOLLIN, self._readable)

    def _readable(self, events: int) -> None:
        if self._wish is not None:  # it hung up while the host looks
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
        except GreetingError as error:
            self._refuse(error.answer)

    def _advance(self) -> None:
        self._socks = self._socks or self._data[0] in (4, 5)
        if self._socks and not self._greeted:
            methods = greetings.socks_methods(self._data)
            if methods is None:
                return
            answer, used = methods
            self._data = self._data[used:]
            self._greeted = True
            self._say(answer)
        wish = (greetings.socks_wish if self._socks else greetings.http_wish)(self._data)
        if wish is None:
            return
        self._wish = wish
        self._timer.cancel()
        self._proxy.reactor.watch(self._socket.fileno(), 0, self._readable)  # its hanging up is told all the same
        self._channel = self._proxy.tunnels.ask(wish.host, wish.port, self._answered)

    def _answered(self, fields: dict[str, object]) -> None:
        wish = self._wish
        if wish is None or self._socket.fileno() < 0:
            return
        if fields.get("open") is True:
            self._join(wish)
            return
        why = str(fields.get("denied") or fields.get("failed") or "the host did not say why")
        if "denied" in fields:
            refusal: dict[str, object] = {"code": "network_denied", "host": wish.host, "port": wish.port, "why": why}
            refusal |= {name: str(fields.get(name) or "") for name in ("kind", "about")}
            self._proxy.denied(ends_of(self._socket), refusal, lambda: self._turn_down(wish, why, denied=True))
        else:
            self._turn_down(wish, why, denied=False)

    def _join(self, wish: Wish) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101  it was asked for
        self._proxy.reactor.unwatch(self._socket.fileno())
        self._proxy.left(self)
        if wish.tunnel:
            self._say(greetings.socks_answer(greetings.SOCKS_OK) if self._socks else greetings.HTTP_OPEN)
        self._proxy.tunnels.join(channel, self._socket, wish.first)

    def _turn_down(self, wish: Wish, why: str, denied: bool) -> None:
        if self._socket.fileno() < 0:
            return
        if self._socks:
            code = greetings.SOCKS_DENIED if denied else greetings.SOCKS_UNREACHABLE
            self._refuse(greetings.socks_answer(code))
        elif denied:
            self._refuse(greetings.http_answer(403, f"{wish.host}:{wish.port} is refused by the sandbox: {why}"))
        else:
            self._refuse(greetings.http_answer(502, f"{wish.host}:{wish.port} was not reached: {why}"))

    def _refuse(self, answer: bytes) -> None:
        self._say(answer)
        self._timer.cancel()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            self._close()
            return
        # What the client still sends is read: else it would be reset before it saw the answer.
        self._timer = self._proxy.reactor.after(PARTING_SECONDS, self._close)
        self._proxy.reactor.watch(self._socket.fileno(), select.EPOLLIN, self._parting)

    def _parting(self, _: int) -> None:
        try:
            if self._socket.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._close()

    def _say(self, answer: bytes) -> None:
        try:
            self._socket.send(answer)  # short: it fits an empty socket
        except OSError:  # gone; noticed when it is read
            pass

    def _late(self) -> None:
        self._refuse(b"" if self._socks else greetings.http_answer(408, "nothing was asked for within 30 seconds"))

    def _close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._timer.cancel()
        self._proxy.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._proxy.left(self)
        if self._channel is not None:
            self._proxy.tunnels.forget(self._channel)
