"""Connections through the pipe: sockets in the sandbox joined to channels, under credit in both directions.

The guest opens channels with the highest bit set for destinations that programs here want to reach; the host opens others to reach
servers here. DATA, END (no more from this side), CREDIT and CANCEL (cut, with a reason) mean the same in both directions.
Everything here runs in the reactor's thread.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque

from ..protocol import wire
from ..protocol.wire import GUEST_CHANNELS, Kind
from .refusals import ends_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..loop.link import Link
    from ..loop.reactor import Reactor
    from .refusals import ReportRefusal

    # Called with {"open": True} if the connection stands, else with {"failed": why} or {"denied": why, "kind": ..., "about": ...}.
    OnAnswer = Callable[[dict[str, object]], None]

CONNECT_SECONDS = 10.0
MOST = 256
NO_HOST = "no orchestrator is attached to this sandbox"
CUT = "the connection to its orchestrator was cut"
# SO_LINGER with no time: closing resets the connection, so that the peer does not take a cut for an orderly end.
RESET = struct.pack("ii", 1, 0)
# Bytes that wait for a socket are held in pieces of this size.
PIECE_BYTES = 64 * 1024


class Tunnels:
    """All tunnels of the sandbox, by channel: at most 256 in each direction, which is what the host accepts.

    ``report_refusal`` is called for each connection that the host refuses or cuts. ``alone`` says that there is no host yet.
    """

    def __init__(self, reactor: Reactor, link: Link, report_refusal: ReportRefusal, alone: bool = False) -> None:
        self._reactor = reactor
        self._link = link
        self._report_refusal = report_refusal
        self._next = 0
        self._open: dict[int, Tunnel] = {}
        self._asked: dict[int, OnAnswer] = {}
        # Gives up connections that the host asked for and that do not stand yet.
        self._dialling: dict[int, Callable[[], None]] = {}
        self._alone = alone
        self._growth = Growth()

    def ask(self, host: str, port: int, on_answer: OnAnswer) -> int:
        """Ask the host for a connection to ``host``. Returns its channel.

        Call ``join`` with it once the answer is that it is open, or ``forget`` if it is not wanted any more.
        """
        self._next = (self._next + 1) % GUEST_CHANNELS
        channel = GUEST_CHANNELS | self._next
        if len(self._asked) + len(self._open) >= MOST:
            on_answer({"denied": f"there are {MOST} connections already, the most there may be", "kind": "limit"})
            return channel
        if self._alone or self._link.lost:
            on_answer({"failed": NO_HOST})
            return channel
        self._asked[channel] = on_answer
        self._link.message(Kind.OPEN, self._link.key(channel), {"host": host, "port": port})
        return channel

    def join(self, channel: int, sock: socket.socket, first: bytes) -> None:
        """Let bytes flow between ``sock``, from which ``first`` was read already, and an open channel."""
        key = self._link.key(channel)
        tunnel = Tunnel(self._reactor, self._link, key, sock, self._growth, lambda: self._remove(channel))
        self._open[channel] = tunnel
        tunnel.begin(first)

    def _remove(self, channel: int) -> None:
        self._open.pop(channel, None)

    def forget(self, channel: int) -> None:
        """Cancel a question to the host: the program that wanted the connection has closed its own."""
        if self._asked.pop(channel, None) is not None:
            self._link.frame(Kind.CANCEL, self._link.key(channel))

    def drop_all(self, alone: bool) -> None:
        """Cut everything that the last host opened or was asked for; ``alone`` says that there is no other host yet."""
        self._alone = alone
        for tunnel in list(self._open.values()):
            tunnel.cut(tell=False)
        for give_up in list(self._dialling.values()):
            give_up()
        asked, self._asked = self._asked, {}
        for on_answer in asked.values():
            on_answer({"failed": CUT})

    def takes(self, channel: int) -> bool:
        """Return whether frames of the channel belong here."""
        return channel >= GUEST_CHANNELS or channel in self._open or channel in self._dialling

    def taker(self, channel: int) -> wire.Taker | None:
        """Return the function that receives the channel's payload, or None if the channel is not an open connection."""
        tunnel = self._open.get(channel)
        return None if tunnel is None else tunnel.take

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Handle a frame of the host. Raises WireError."""
        if kind == Kind.REPLY:
            on_answer = self._asked.pop(channel, None)
            fields, _ = wire.unpack_message(payload)
            if on_answer is not None:
                on_answer(fields)
            return
        if kind == Kind.CANCEL and channel in self._dialling:
            self._dialling[channel]()
        tunnel = self._open.get(channel)
        if tunnel is None:
            return
        if kind == Kind.DATA:
            tunnel.take(memoryview(payload))
        elif kind == Kind.CREDIT:
            tunnel.credit(wire.parse_credit(payload))
        elif kind == Kind.END:
            tunnel.end()
        elif kind == Kind.NOTICE:
            self._report(tunnel, wire.unpack_message(payload)[0])
        elif kind == Kind.CANCEL:
            tunnel.cancel(orderly=not payload)

    def _report(self, tunnel: Tunnel, notice: dict[str, Any]) -> None:
        """Report what the host refused on this connection, or why it is about to cut it, before the socket notices."""
        tunnel.hold()
        self._report_refusal(ends_of(tunnel.socket), notice, tunnel.go_on)

    def dial(self, channel: int, fields: dict[str, object]) -> None:
        """Connect the host to a server of the sandbox, on the loopback of either address family. Raises WireError."""
        port = fields.get("port")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise wire.WireError("invalid port")
        if sum(each < GUEST_CHANNELS for each in self._open) + len(self._dialling) >= MOST:
            self._fail(channel, f"there are {MOST} connections already, the most there may be")
            return
        self._try(channel, port, [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])

    def _try(self, channel: int, port: int, addresses: list[tuple[int, str]]) -> None:
        family, address = addresses[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._try_next(channel, error.errno, port, addresses)
            return
        problem = sock.connect_ex((address, port))
        # A connection over loopback is made or refused at once; only a full backlog takes time.
        if problem == 0:
            self._connected(channel, sock)
        elif problem == 115:  # EINPROGRESS
            self._await(channel, sock, port, addresses)
        else:
            sock.close()
            self._try_next(channel, problem, port, addresses)

    def _await(self, channel: int, sock: socket.socket, port: int, addresses: list[tuple[int, str]]) -> None:
        def leave() -> None:
            self._dialling.pop(channel, None)
            timer.cancel()
            self._reactor.unwatch(sock.fileno())

        def ready(_: int) -> None:
            leave()
            problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                sock.close()
                self._try_next(channel, problem, port, addresses)
            else:
                self._connected(channel, sock)

        def give_up() -> None:
            leave()
            sock.close()

        def late() -> None:
            give_up()
            self._try_next(channel, 110, port, addresses[:1])

        timer = self._reactor.after(CONNECT_SECONDS, late)
        self._dialling[channel] = give_up
        self._reactor.watch(sock.fileno(), select.EPOLLOUT, ready)

    def _connected(self, channel: int, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In one queue with the bytes that follow, so that none overtakes it.
        self._link.flow(Kind.REPLY, self._link.key(channel), wire.pack_message({"open": True}))
        self.join(channel, sock, b"")

    def _try_next(self, channel: int, problem: int | None, port: int, addresses: list[tuple[int, str]]) -> None:
        if len(addresses) > 1:
            self._try(channel, port, addresses[1:])
        else:
            self._fail(channel, "timed out" if problem == 110 else "nothing listens there")

    def _fail(self, channel: int, why: str) -> None:
        self._link.message(Kind.REPLY, self._link.key(channel), {"failed": why})


class Growth:
    """By how many bytes the windows of all connections together may still grow.

    The guest's memory holds whatever stalled programs do not read.
    """

    def __init__(self) -> None:
        self._left = wire.GROWTH_BYTES

    def take(self, size: int) -> int:
        """Take up to ``size`` bytes of what is left. Returns how many."""
        taken = min(size, self._left)
        self._left -= taken
        return taken

    def give_back(self, size: int) -> None:
        """Return the bytes that a closed connection had taken."""
        self._left += size


class Tunnel:
    """One connection. ``on_end`` is called once, when its socket is closed."""

    def __init__(
        self, reactor: Reactor, link: Link, key: int, sock: socket.socket, growth: Growth, on_end: Callable[[], None]
    ) -> None:
        self.key = key
        self._reactor = reactor
        self._link = link
        self.socket = sock
        self._fd = sock.fileno()
        self._on_end: Callable[[], None] | None = on_end
        self._outgoing = wire.SendWindow(wire.TUNNEL_WINDOW)
        self._incoming = wire.ReceiveWindow(wire.TUNNEL_WINDOW)
        self._growth = growth
        self._unsent: deque[bytearray] = deque()
        self._sent_of_first = 0
        self._near_ended = False
        self._far_ended = False
        self._awaits_room = False
        self._holds = 0
        self._cancelled = False
        self._events = 0
        sock.setblocking(False)

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self._on_end is None

    def begin(self, first: bytes = b"") -> None:
        """Start: the other end stands. ``first`` was read from the socket before."""
        if first:
            self._outgoing.use(len(first))
            self._link.flow(Kind.DATA, self.key, first)
        self._watch()

    def take(self, piece: memoryview) -> None:
        """Send bytes to the socket, and hold those that it does not accept yet. A host that exceeds its credit is cut off."""
        if self.closed or self._far_ended:
            return
        self._incoming.receive(len(piece))
        if not self._unsent and not self._holds:
            piece = piece[self._send(piece) :]
        if piece and not self.closed:
            self._enqueue(piece)
            if self._incoming.overrun:
                self.cut("beyond the credit")
        self._settle()

    def _enqueue(self, piece: memoryview) -> None:
        """Hold bytes until the socket accepts them, joined with those before them: a server may send single bytes."""
        if self._unsent and len(self._unsent[-1]) + len(piece) <= PIECE_BYTES:
            self._unsent[-1] += piece
        else:
            self._unsent.append(bytearray(piece))

    def credit(self, size: int) -> None:
        """Send more: the host consumed ``size`` bytes."""
        self._outgoing.add_credit(size)
        self._watch()

    def end(self) -> None:
        """Note that the host has no more bytes."""
        self._far_ended = True
        if not self._unsent and not self._holds:
            self._shut_down()

    def hold(self) -> None:
        """Keep the host's bytes from the socket until ``go_on`` is called as often as this."""
        self._holds += 1
        self._watch()

    def go_on(self) -> None:
        """End one ``hold``."""
        self._holds -= 1
        if self.closed or self._holds:
            return
        if self._cancelled:
            self.cut(tell=False)
        else:
            self._write()

    def cancel(self, orderly: bool) -> None:
        """Close because the host did; ``orderly`` says that both sides had ended, and what the host sent is still to be written."""
        if orderly and self._near_ended and self._far_ended:
            return
        self._cancelled = True
        if not self._holds:
            self.cut(tell=False)

    def cut(self, why: str = "", tell: bool = True) -> None:
        """Close at once; with ``tell`` the host learns ``why``."""
        if self.closed:
            return
        if tell:
            self._link.flow(Kind.CANCEL, self.key, why.encode()[:200])
        if not (self._near_ended and self._far_ended and not self._unsent):
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:  # not connected any more
                pass
        self._close()

    def _watch(self) -> None:
        """Poll for what can be used: input while there is credit, room for output while bytes wait."""
        if self.closed:
            return
        events = 0
        if not self._near_ended and not self._awaits_room and self._outgoing.left > 0:
            events |= select.EPOLLIN
        if self._unsent and not self._holds:
            events |= select.EPOLLOUT
        if events == self._events:
            return
        self._events = events
        if events:
            self._reactor.watch(self._fd, events, self._ready)
        else:
            self._reactor.unwatch(self._fd)

    def _ready(self, events: int) -> None:
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not self._near_ended:
            self._read()
        if events & (select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR) and not self.closed:
            self._write()
        if events & (select.EPOLLHUP | select.EPOLLERR) and not self.closed and self._near_ended:
            self.cut("the connection in the sandbox was cut")

    def _read(self) -> None:
        if not self._link.has_room(self._resume):
            self._awaits_room = True
            self._watch()
            return
        limit = min(wire.FLOW_CHUNK, self._outgoing.left)
        try:
            data = self.socket.recv(limit) if limit > 0 else None
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.cut(error.strerror or "cut")
            return
        if data is None:
            return
        if data:
            self._outgoing.use(len(data))
            self._link.flow(Kind.DATA, self.key, data)
        else:
            self._near_ended = True
            self._link.flow(Kind.END, self.key)
            self._close_when_done()
        self._watch()

    def _resume(self) -> None:
        """Read on: the pipe has room again."""
        self._awaits_room = False
        self._watch()

    def _write(self) -> None:
        while self._unsent and not self._holds:
            first = self._unsent[0]
            with memoryview(first) as whole, whole[self._sent_of_first :] as rest:
                sent = self._send(rest)
            if self.closed:
                return
            self._sent_of_first += sent
            if self._sent_of_first < len(first):
                break
            self._unsent.popleft()
            self._sent_of_first = 0
        self._settle()

    def _send(self, piece: memoryview) -> int:
        """Send as much of a piece as the socket accepts now. Returns how much; 0 also if the socket is gone."""
        try:
            sent = self.socket.send(piece)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.cut(error.strerror or "cut")
            return 0
        self._incoming.consume(sent)
        return sent

    def _settle(self) -> None:
        """Give credit, pass on the end and poll again, after bytes went to the socket or could not."""
        if self.closed:
            return
        if self._incoming.credit_due:
            self._give_credit()
        if self._far_ended and not self._unsent and not self._holds:
            self._shut_down()
        self._watch()

    def _give_credit(self) -> None:
        """Credit what was consumed; more if the socket accepts everything, because then the window is what limits the speed."""
        more = 0
        if not self._unsent:
            more = self._growth.take(min(self._incoming.owed, wire.MOST_TUNNEL_WINDOW - self._incoming.size))
        self._link.frame(Kind.CREDIT, self.key, self._incoming.credit(more))

    def _shut_down(self) -> None:
        if self.closed:
            return
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            pass
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._near_ended and self._far_ended and not self._unsent:
            self._close()

    def _close(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        self._reactor.unwatch(self._fd)
        self.socket.close()
        self._unsent.clear()
        self._growth.give_back(self._incoming.size - wire.TUNNEL_WINDOW)
        on_end()
