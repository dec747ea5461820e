"""Connections through the pipe: a socket in the sandbox joined to a channel, both ways under credit. Lives in the reactor's thread.

The guest opens channels with the highest bit set for what programs here want to reach; the host opens others for servers here that
are to be reached. DATA, END (no more from this side), CREDIT and CANCEL (cut, with a reason) mean the same in both directions.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque

from ..protocol import wire
from ..protocol.wire import Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..loop.link import Link
    from ..loop.reactor import Reactor

# SO_LINGER with no time: closing resets the connection, so that a cut is not taken for an end.
RESET = struct.pack("ii", 1, 0)
# Of what waits for a socket, so much is in one piece.
KEPT_BYTES = 64 * 1024


class Growth:
    """By how much the windows of all connections together may still grow: a guest holds what stalled programs do not take."""

    def __init__(self) -> None:
        self._left = wire.GROWTH_BYTES

    def take(self, size: int) -> int:
        """How much of ``size`` there is."""
        taken = min(size, self._left)
        self._left -= taken
        return taken

    def give_back(self, size: int) -> None:
        """What a connection took that is over."""
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
        self._window = wire.TUNNEL_WINDOW  # what may be sent to the host
        self._growth = growth
        self._granted = wire.TUNNEL_WINDOW  # what the host may have sent that was not taken
        self._unsent: deque[bytearray] = deque()
        self._sent_of_first = 0
        self._unsent_bytes = 0
        self._owed = 0
        self._near_ended = False
        self._far_ended = False
        self._waits = False
        self._holds = 0
        self._cancelled = False
        self._events = 0
        sock.setblocking(False)

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self._on_end is None

    def begin(self, first: bytes = b"") -> None:
        """The other end stands; ``first`` was read from the socket before."""
        if first:
            self._window -= len(first)
            self._link.flow(Kind.DATA, self.key, first)
        self._watch()

    # --- the channel ------------------------------------------------------------------
    def take(self, piece: memoryview) -> None:
        """Bytes for the socket, which are kept where it does not take them. A host that sends beyond its credit is cut off."""
        if self.closed or self._far_ended:
            return
        if not self._unsent and not self._holds:
            piece = piece[self._sent(piece) :]
        if piece and not self.closed:
            self._keep(piece)
            if self._unsent_bytes > self._granted:
                self.cut("beyond the credit")
        self._settle()

    def _keep(self, piece: memoryview) -> None:
        """Until the socket takes it; with what waits already, for a server may send single bytes."""
        if self._unsent and len(self._unsent[-1]) + len(piece) <= KEPT_BYTES:
            self._unsent[-1] += piece
        else:
            self._unsent.append(bytearray(piece))
        self._unsent_bytes += len(piece)

    def credit(self, size: int) -> None:
        """The host took ``size`` bytes."""
        self._window = min(self._window + size, wire.TUNNEL_WINDOW)
        self._watch()

    def end(self) -> None:
        """The host has no more."""
        self._far_ended = True
        if not self._unsent and not self._holds:
            self._shut()

    def hold(self) -> None:
        """Let nothing that comes from the host reach the socket until ``go_on``; may be called again meanwhile."""
        self._holds += 1
        self._watch()

    def go_on(self) -> None:
        """See ``hold``."""
        self._holds -= 1
        if self.closed or self._holds:
            return
        if self._cancelled:
            self.cut(tell=False)
        else:
            self._write()

    def cancelled(self, orderly: bool) -> None:
        """The host cut it; ``orderly`` where it only has no more to do with it, and what it sent is still to be written."""
        if orderly and self._near_ended and self._far_ended:
            return
        self._cancelled = True
        if not self._holds:
            self.cut(tell=False)

    def cut(self, why: str = "", tell: bool = True) -> None:
        """End it at once."""
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

    # --- the socket ------------------------------------------------------------------
    def _watch(self) -> None:
        """Listen for what can be used: bytes where there is credit, room where something waits."""
        if self.closed:
            return
        events = 0
        if not self._near_ended and not self._waits and self._window > 0:
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
            self._waits = True
            self._watch()
            return
        try:
            data = self.socket.recv(min(wire.FLOW_CHUNK, self._window)) if self._window > 0 else None
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.cut(error.strerror or "cut")
            return
        if data is None:
            return
        if data:
            self._window -= len(data)
            self._link.flow(Kind.DATA, self.key, data)
        else:
            self._near_ended = True
            self._link.flow(Kind.END, self.key)
            self._close_when_done()
        self._watch()

    def _resume(self) -> None:
        """The pipe has room again."""
        self._waits = False
        self._watch()

    def _write(self) -> None:
        while self._unsent and not self._holds:
            first = self._unsent[0]
            with memoryview(first) as whole, whole[self._sent_of_first :] as rest:
                sent = self._sent(rest)
            if self.closed:
                return
            self._unsent_bytes -= sent
            self._sent_of_first += sent
            if self._sent_of_first < len(first):
                break
            self._unsent.popleft()
            self._sent_of_first = 0
        self._settle()

    def _sent(self, piece: memoryview) -> int:
        """How much of it the socket takes now."""
        try:
            sent = self.socket.send(piece)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.cut(error.strerror or "cut")
            return 0
        self._owed += sent
        return sent

    def _settle(self) -> None:
        """What is due when bytes went to the socket, or could not."""
        if self.closed:
            return
        if self._owed >= self._granted // 4:
            self._give_credit()
        if self._far_ended and not self._unsent and not self._holds:
            self._shut()
        self._watch()

    def _give_credit(self) -> None:
        """For what was taken; more where the socket takes all that comes, for then the way is what is slow."""
        more = 0
        if not self._unsent:
            more = self._growth.take(min(self._owed, wire.MOST_TUNNEL_WINDOW - self._granted))
        self._granted += more
        self._link.frame(Kind.CREDIT, self.key, (self._owed + more).to_bytes(4, "big"))
        self._owed = 0

    def _shut(self) -> None:
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
        self._growth.give_back(self._granted - wire.TUNNEL_WINDOW)
        on_end()
