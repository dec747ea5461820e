"""The guest's end of the way out: it listens from the start, and loads what serves connections when the first one arrives.

Most sandboxes never use it, and the rest takes memory and time to load.
"""

from __future__ import annotations

import select
import sys

from ..builtin import socket
from ..protocol import wire
from ..protocol.constants import PROXY_PORT
from ..protocol.wire import GUEST_CHANNELS, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..loop.link import Link
    from ..loop.reactor import Reactor
    from ..loop.workers import Workers
    from .proxy import Proxy
    from .refusals import Ends, Refusals
    from .service_names import ServiceNames
    from .tunnels import Tunnels

BACKLOG = 512
# The size of the pipe's ends once connections use them. Longer ones are no faster, and requests wait behind what is in them.
PIPE_BYTES = 256 * 1024
F_SETPIPE_SZ = 1031


class Egress:
    """Tunnels to and from the host. With ``listens`` also the proxy for programs here; with ``names`` the names of services."""

    def __init__(
        self,
        reactor: Reactor,
        link: Link,
        processes: Processes,
        workers: Workers,
        listens: bool,
        names: list[tuple[str, str, list[int]]] | None = None,
        in_fd: int = -1,
    ) -> None:
        self._in = in_fd
        self._reactor = reactor
        self._link = link
        self._processes = processes
        self._workers = workers
        self._refusals: Refusals | None = None
        self._listener = listen() if listens else None
        self._proxy: Proxy | None = None
        self._alone = False
        self._tunnels: Tunnels | None = None
        if self._listener is not None:
            reactor.watch(self._listener, select.EPOLLIN, self._start_proxy)
        self._names: ServiceNames | None = None
        if names:
            from .service_names import ServiceNames

            self._names = ServiceNames(reactor, self._get_tunnels, self._report, names)

    def takes(self, kind: int, channel: int) -> bool:
        """Return whether a frame belongs to a connection, not to a request."""
        return (
            kind == Kind.OPEN
            or channel >= GUEST_CHANNELS
            or (self._tunnels is not None and self._tunnels.takes(channel))
        )

    def taker(self, channel: int) -> wire.Taker | None:
        """Return the function that receives the channel's payload, or None if the channel is not an open connection."""
        return self._tunnels.taker(channel) if self._tunnels is not None else None

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Handle a frame of the host. Raises WireError."""
        if kind == Kind.OPEN:
            if channel >= GUEST_CHANNELS:
                raise wire.WireError("the host opens a channel of the guest's")
            self._get_tunnels().dial(channel, wire.unpack_message(payload)[0])
        elif self._tunnels is not None:
            self._tunnels.frame(kind, channel, payload)

    def drop_connections(self, *, alone: bool) -> None:
        """Drop the connections of a host that detached (``alone``) or was replaced by another one."""
        self._alone = alone
        if self._tunnels is not None:
            self._tunnels.drop_all(alone)

    def _get_tunnels(self) -> Tunnels:
        if self._tunnels is None:
            from .tunnels import Tunnels

            widen(self._in)
            widen(self._link.fd)
            self._tunnels = Tunnels(self._reactor, self._link, self._report, self._alone)
        return self._tunnels

    def _start_proxy(self, _: int) -> None:
        import socket

        from .proxy import Proxy

        listener = socket.socket(fileno=self._listener)
        self._proxy = Proxy(self._reactor, self._get_tunnels(), self._report, listener)

    def _report(self, ends: Ends, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        if self._refusals is None:
            from .refusals import Refusals

            self._refusals = Refusals(self._reactor, self._processes, self._workers)
        self._refusals.report(ends, refusal, then)


def widen(fd: int) -> None:
    """Enlarge a pipe, so that its writer is woken less often. Does nothing if ``fd`` is something else or the kernel refuses."""
    import fcntl

    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # the user has many pipes already, or the engine uses something else
        pass


def listen(port: int = PROXY_PORT) -> int | None:
    """Return the descriptor of the proxy's listening socket; None, with a line on stderr, if there is no loopback to listen on."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        print(f"there is no way out of the sandbox: {error}", file=sys.stderr)
        return None
    return sock.detach()
