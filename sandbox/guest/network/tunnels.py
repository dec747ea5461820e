"""The tunnels of a sandbox by their channel, and how they are opened from either end. Lives in the reactor's thread."""

from __future__ import annotations

import select
import socket

from ..protocol import wire
from ..protocol.wire import Kind
from .egress import GUEST_CHANNELS
from .refusals import ends_of
from .tunnel import Growth, Tunnel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..loop.link import Link
    from ..loop.reactor import Reactor
    from .refusals import Noted

    # Called with {"open": True} where the way is open, else with {"failed": why} or {"denied": why, "kind": ..., "about": ...}.
    Answered = Callable[[dict[str, object]], None]

CONNECT_SECONDS = 10.0
MOST = 256
NO_HOST = "no orchestrator is attached to this sandbox"
CUT = "the connection to its orchestrator was cut"


class Tunnels:
    """Every tunnel; at most 256 a direction, which is what the host takes. ``noted`` is told of what the host refuses or cuts."""

    def __init__(self, reactor: Reactor, link: Link, noted: Noted, alone: bool = False) -> None:
        self._reactor = reactor
        self._link = link
        self._noted = noted
        self._next = 0
        self._open: dict[int, Tunnel] = {}
        self._asked: dict[int, Answered] = {}
        # What gives up connections that the host wants and that do not stand yet.
        self._dialling: dict[int, Callable[[], None]] = {}
        self._alone = alone
        self._growth = Growth()

    # --- from here ------------------------------------------------------------------
    def ask(self, host: str, port: int, answered: Answered) -> int:
        """Ask the host for a way to ``host``; the channel, for ``join`` when it is open and ``forget`` when it is not wanted."""
        self._next = (self._next + 1) % GUEST_CHANNELS
        channel = GUEST_CHANNELS | self._next
        if len(self._asked) + len(self._open) >= MOST:
            answered({"denied": f"there are {MOST} connections already, the most there may be", "kind": "limit"})
            return channel
        if self._alone or self._link.lost:
            answered({"failed": NO_HOST})
            return channel
        self._asked[channel] = answered
        self._link.message(Kind.OPEN, self._link.key(channel), {"host": host, "port": port})
        return channel

    def join(self, channel: int, sock: socket.socket, first: bytes) -> None:
        """Let bytes flow between ``sock``, from which ``first`` was read already, and an open channel."""
        key = self._link.key(channel)
        tunnel = Tunnel(self._reactor, self._link, key, sock, self._growth, lambda: self._ended(channel))
        self._open[channel] = tunnel
        tunnel.begin(first)

    def _ended(self, channel: int) -> None:
        self._open.pop(channel, None)

    def forget(self, channel: int) -> None:
        """Whoever asked for it is gone."""
        if self._asked.pop(channel, None) is not None:
            self._link.frame(Kind.CANCEL, self._link.key(channel))

    # --- hosts ------------------------------------------------------------------
    def part(self, alone: bool) -> None:
        """The host of all these is gone; ``alone`` says that there is no other yet."""
        self._alone = alone
        for tunnel in list(self._open.values()):
            tunnel.cut(tell=False)
        for give_up in list(self._dialling.values()):
            give_up()
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered({"failed": CUT})

    # --- frames ------------------------------------------------------------------
    def takes(self, channel: int) -> bool:
        """Whether frames of that channel are for here."""
        return channel >= GUEST_CHANNELS or channel in self._open or channel in self._dialling

    def taker(self, channel: int) -> wire.Taker | None:
        """Who takes the bytes of that channel as they come; None where it is none of a connection that stands."""
        tunnel = self._open.get(channel)
        return None if tunnel is None else tunnel.take

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """A frame of the host. Raises WireError."""
        if kind == Kind.REPLY:
            answered = self._asked.pop(channel, None)
            fields, _ = wire.unpack_message(payload)
            if answered is not None:
                answered(fields)
            return
        if kind == Kind.CANCEL and channel in self._dialling:
            self._dialling[channel]()
        tunnel = self._open.get(channel)
        if tunnel is None:
            return
        if kind == Kind.DATA:
            tunnel.take(memoryview(payload))
        elif kind == Kind.CREDIT:
            tunnel.credit(int.from_bytes(payload[:4], "big"))
        elif kind == Kind.END:
            tunnel.end()
        elif kind == Kind.NOTICE:
            self._tell(tunnel, wire.unpack_message(payload)[0])
        elif kind == Kind.CANCEL:
            tunnel.cancelled(orderly=not payload)

    def _tell(self, tunnel: Tunnel, notice: dict[str, Any]) -> None:
        """The host refused something on this connection, or is about to cut it: its command is told before its socket is."""
        tunnel.hold()
        self._noted(ends_of(tunnel.socket), notice, tunnel.go_on)

    # --- from the host ------------------------------------------------------------------
    def dial(self, channel: int, fields: dict[str, object]) -> None:
        """The host wants a connection to a server here: on loopback, in either family."""
        port = fields.get("port")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise wire.WireError("a way to no port")
        if sum(one < GUEST_CHANNELS for one in self._open) + len(self._dialling) >= MOST:
            self._fail(channel, f"there are {MOST} connections already, the most there may be")
            return
        self._try(channel, port, [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])

    def _try(self, channel: int, port: int, places: list[tuple[int, str]]) -> None:
        family, address = places[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._decline(channel, error.errno, port, places)
            return
        problem = sock.connect_ex((address, port))
        # A connection over loopback is made or refused at once; only a full backlog takes time.
        if problem == 0:
            self._joined(channel, sock)
        elif problem == 115:  # EINPROGRESS
            self._await(channel, sock, port, places)
        else:
            sock.close()
            self._decline(channel, problem, port, places)

    def _await(self, channel: int, sock: socket.socket, port: int, places: list[tuple[int, str]]) -> None:
        def leave() -> None:
            self._dialling.pop(channel, None)
            timer.cancel()
            self._reactor.unwatch(sock.fileno())

        def ready(_: int) -> None:
            leave()
            problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                sock.close()
                self._decline(channel, problem, port, places)
            else:
                self._joined(channel, sock)

        def give_up() -> None:
            leave()
            sock.close()

        def late() -> None:
            give_up()
            self._decline(channel, 110, port, places[:1])

        timer = self._reactor.after(CONNECT_SECONDS, late)
        self._dialling[channel] = give_up
        self._reactor.watch(sock.fileno(), select.EPOLLOUT, ready)

    def _joined(self, channel: int, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In one queue with the bytes that follow, so that none comes before it.
        self._link.flow(Kind.REPLY, self._link.key(channel), wire.pack_message({"open": True}))
        self.join(channel, sock, b"")

    def _decline(self, channel: int, problem: int | None, port: int, places: list[tuple[int, str]]) -> None:
        if len(places) > 1:
            self._try(channel, port, places[1:])
        else:
            self._fail(channel, "timed out" if problem == 110 else "nothing listens there")

    def _fail(self, channel: int, why: str) -> None:
        self._link.message(Kind.REPLY, self._link.key(channel), {"failed": why})
