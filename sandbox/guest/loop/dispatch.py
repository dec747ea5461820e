"""The guest's server: who its host is, and where each frame of it goes."""

from __future__ import annotations

import os
import select
import sys

from ..commands.processes import Processes
from ..network.egress import Egress
from ..protocol import wire
from ..protocol.reattach import Call
from ..protocol.wire import Kind
from ..watch.lifetime import LEASE_OVER
from .entrances import Door, Entrance
from .host_lease import Keeper, Lease
from .link import Link
from .reactor import Reactor
from .requests import Requests
from .shortcut import Shortcut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 256 * 1024
# After a pause, or a time without a processor, the host is heard a moment later than the lease ends.
LATE_SECONDS = 2.0


class Server:
    """Serves a host until the pipe ends, the bytes on it are not the protocol's, or the lease runs out.

    A kept sandbox (its lease is a Keeper) serves one host after another: commands, sessions and remembered replies stay; the
    channels of an earlier host lead nowhere. Bytes that are not the protocol's are dropped until a host calls.
    """

    def __init__(self, reactor: Reactor, in_fd: int, decoder: wire.Decoder, link: Link, processes: Processes,
                 requests: Requests, egress: Egress, lease: Lease, isolated: bool,
                 shortcut: Shortcut | None = None) -> None:  # fmt: skip
        self._reactor = reactor
        self._in = in_fd
        self._decoder = decoder
        decoder.taker = egress.taker
        self._link = link
        self._processes = processes
        self._requests = requests
        self._egress = egress
        self._assembler = wire.Assembler()
        self._shortcut = shortcut
        self._lease = lease
        self._keeper = lease if isinstance(lease, Keeper) else None
        self._broken = self._late = False
        self._entrance: Entrance | None = None
        if self._keeper is None:
            self._buffer = memoryview(bytearray(READ_BYTES))
            os.set_blocking(in_fd, False)
            reactor.watch(in_fd, select.EPOLLIN, self._readable)
        else:
            self._entrance = Entrance(reactor, self._keeper.token, in_fd, link.fd, self._entered)
            if processes.lifetime is not None:
                processes.lifetime.alone = self._keeper.alone
            if isolated:
                self._door = Door(reactor, self._keeper.token, self._entered)
        reactor.after(lease.left(), self._check_lease)

    def _check_lease(self) -> None:
        left = self._lease.left()
        if left > 0:
            self._late = False
            self._reactor.after(left, self._check_lease)
        elif not self._late:
            self._late = True
            self._reactor.after(min(LATE_SECONDS, self._lease.seconds / 4), self._check_lease)
        else:
            self._reactor.stop(LEASE_OVER)

    def _readable(self, _: int) -> None:
        try:
            size = os.readv(self._in, [self._buffer])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._reactor.stop()
            return
        self._lease.renew()
        try:
            self.feed(self._buffer[:size])
        except wire.WireError as error:
            print(f"the pipe is broken: {error}", file=sys.stderr)
            self._reactor.stop()

    # --- kept sandboxes ------------------------------------------------------------------
    def _entered(self, entrance: Entrance, piece: bytes | Call | None) -> None:
        """Something came in by an entrance of a kept sandbox."""
        keeper = self._keeper
        if keeper is None:
            return
        if piece is None:
            self._link.hang_up(entrance.out_fd)
        elif isinstance(piece, Call):
            if keeper.accepts(piece):
                self._change_host(keeper, piece, entrance)
        elif entrance is self._entrance and not self._broken:
            try:
                self.feed(piece)
                keeper.renew()
            except wire.WireError as error:
                print(f"the host is not understood: {error}", file=sys.stderr)
                self._broken = True
                self._link.frame(Kind.DETACH, self._link.key(0))  # have it call

    def _change_host(self, keeper: Keeper, call: Call, entrance: Entrance) -> None:
        self._entrance = entrance
        if not keeper.same_host(call):
            self._requests.forget_host()
        self._decoder, self._assembler, self._broken = wire.Decoder(call.nonce, self._egress.taker), wire.Assembler(), False
        self._link.restart(call.nonce, keeper.take(call), entrance.out_fd)
        self._requests.end_streams()
        self._egress.part(alone=False)

    def _kept_frame(self, keeper: Keeper, kind: int, key: int, payload: bytes) -> None:
        if kind == Kind.HELLO:
            self._link.message(Kind.HELLO, key, greeting())
        elif kind == Kind.DETACH:
            keeper.detached = True
            self._egress.part(alone=True)
            self._requests.acknowledge(wire.unpack_message(payload)[0].get("acknowledged"))

    # --- in ------------------------------------------------------------------
    def feed(self, data: bytes | memoryview) -> None:
        """Serve the frames in ``data``. Raises WireError."""
        for kind, channel, payload in self._decoder.feed(data):
            self.frame(kind, channel, payload)

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Serve one frame. Raises WireError."""
        key = self._link.key(channel)
        if self._egress.takes(kind, channel):
            self._egress.frame(kind, channel, payload)
        elif kind == Kind.REQUEST:
            self._requests.take(key, self._assembler.finish(channel, payload))
        elif kind == Kind.PART:
            self._assembler.add(channel, payload)
        elif kind in (Kind.DATA, Kind.END, Kind.CREDIT):
            self._requests.stream(kind, key, payload)
        elif kind == Kind.CANCEL:
            self._assembler.drop(channel)  # of a request that was given up while it was sent
            self._requests.cancel(key)
        elif kind == Kind.PING:
            self._link.frame(Kind.PONG, key, payload[:64])
        elif kind == Kind.ROUTE and self._shortcut is not None:
            self._shortcut.take(self._link)
        elif self._keeper is not None:
            self._kept_frame(self._keeper, kind, key, payload)


def greeting() -> dict[str, Any]:
    """What every host is told first."""
    return {"protocol": wire.PROTOCOL, "python": sys.version.split()[0]}
