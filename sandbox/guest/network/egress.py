"""The sandbox's way out as the guest keeps it: one listening socket from the start, and all that serves it when it is first used.

Most sandboxes never use it, and what serves connections takes memory and time to load.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys

from ..protocol import wire
from ..protocol.wire import Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..loop.link import Link
    from ..loop.reactor import Reactor
    from ..loop.workers import Workers
    from .names import Names
    from .proxy import Proxy
    from .refusals import Ends, Refusals
    from .tunnels import Tunnels

PORT = 24128
BACKLOG = 512
# Of the standard input where connections use it. Longer ones make no faster, and requests wait behind what is in them.
PIPE_BYTES = 256 * 1024
F_SETPIPE_SZ = 1031
# Channels the guest opens have the highest bit set.
GUEST_CHANNELS = 0x80000000


class Egress:
    """Tunnels to and from the host; with ``listens`` also the proxy that programs here find them by, and names of services."""

    def __init__(
        self, reactor: Reactor, link: Link, processes: Processes, workers: Workers, listens: bool,
        names: list[tuple[str, str, list[int]]] | None = None, in_fd: int = -1,
    ) -> None:  # fmt: skip
        self._in = in_fd
        self._reactor = reactor
        self._link = link
        self._processes = processes
        self._workers = workers
        self._refusals: Refusals | None = None
        self._socket = listening() if listens else None
        self._proxy: Proxy | None = None
        self._alone = False
        self._tunnels: Tunnels | None = None
        if self._socket is not None:
            reactor.watch(self._socket.fileno(), select.EPOLLIN, self._first)
        self._names: Names | None = None
        if names:
            from .names import Names

            self._names = Names(reactor, self._made, self._note, names)

    def takes(self, kind: int, channel: int) -> bool:
        """Whether that frame is for here and not of a request."""
        return (
            kind == Kind.OPEN
            or channel >= GUEST_CHANNELS
            or (self._tunnels is not None and self._tunnels.takes(channel))
        )

    def taker(self, channel: int) -> wire.Taker | None:
        """Who takes the bytes of that channel as they come; None where it is none of a connection."""
        return self._tunnels.taker(channel) if self._tunnels is not None else None

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """A frame of the host. Raises WireError."""
        if kind == Kind.OPEN:
            if channel >= GUEST_CHANNELS:
                raise wire.WireError("the host opens a channel of the guest's")
            self._made().dial(channel, wire.unpack_message(payload)[0])
        elif self._tunnels is not None:
            self._tunnels.frame(kind, channel, payload)

    def part(self, *, alone: bool) -> None:
        """The host goes (``alone``), or another one came: connections of its time lead nowhere."""
        self._alone = alone
        if self._tunnels is not None:
            self._tunnels.part(alone)

    def _made(self) -> Tunnels:
        if self._tunnels is None:
            from .tunnels import Tunnels

            widen(self._in)
            widen(self._link.fd)
            self._tunnels = Tunnels(self._reactor, self._link, self._note, self._alone)
        return self._tunnels

    def _first(self, _: int) -> None:
        from .proxy import Proxy

        assert self._socket is not None  # noqa: S101  it is what became readable
        self._proxy = Proxy(self._reactor, self._made(), self._note, self._socket)

    def _note(self, ends: Ends, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        if self._refusals is None:
            from .refusals import Refusals

            self._refusals = Refusals(self._reactor, self._processes, self._workers)
        self._refusals.note(ends, refusal, then)


def widen(fd: int) -> None:
    """Make a pipe longer, where it is one and the kernel lets: its writer is woken less often then."""
    import fcntl

    with contextlib.suppress(OSError):  # the user has many pipes already, or the engine gave something else
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)


def listening(port: int = PORT) -> socket.socket | None:
    """The socket that the proxy listens on; None, and a word on stderr, where there is no loopback to listen on."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        print(f"there is no way out of the sandbox: {error}", file=sys.stderr)
        return None
    return made
