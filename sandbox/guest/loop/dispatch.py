"""The guest's server: which host it serves, and where each of the host's frames goes."""

from __future__ import annotations

import os
import select
import sys
from mmap import mmap

from ..commands.processes import Processes
from ..network.egress import Egress
from ..protocol import wire
from ..protocol.constants import LEASE_OVER
from ..protocol.reattach import Call
from ..protocol.wire import Kind
from .host_lease import KeptLease, Lease
from .link import Link
from .reactor import Reactor
from .requests import Requests
from .shortcut import Shortcut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .entrances import Entrance

READ_BYTES = 256 * 1024
# After a pause, or a time without a processor, the host is heard a moment after the lease has ended.
LATE_SECONDS = 2.0


class Server:
    """Serve a host until the pipe ends, the bytes on it violate the protocol, or the lease runs out.

    A kept sandbox (its lease is a KeptLease) serves one host after another: commands, sessions and stored replies stay; what is
    sent to the channels of an earlier host is dropped. Invalid bytes are dropped until a host calls. A host that goes past the
    engine has an entrance of its own, whose end says that it has left or died.
    """

    def __init__(
        self,
        reactor: Reactor,
        in_fd: int,
        decoder: wire.Decoder,
        link: Link,
        processes: Processes,
        requests: Requests,
        egress: Egress,
        lease: Lease,
        isolated: bool,
    ) -> None:
        self._reactor = reactor
        self._in = in_fd
        self._decoder = decoder
        decoder.taker = self._taker
        self._link = link
        self._processes = processes
        self._requests = requests
        self._egress = egress
        self._assembler = wire.Assembler()
        self._lease = lease
        self._kept_lease = lease if isinstance(lease, KeptLease) else None
        self._has_shortcut = isolated or self._kept_lease is not None
        self._shortcut: Shortcut | None = None  # until the host has asked for an answer there
        self.about: dict[str, Any] = {}
        """What every HELLO says of the sandbox."""
        self._broken = self._late = False
        self._entrance: Entrance | None = None
        self._offered: Entrance | None = None  # until the host sends there
        if self._kept_lease is None:
            self._buffer = memoryview(mmap(-1, READ_BYTES))  # takes memory as it is used; a bytearray is filled at once
            os.set_blocking(in_fd, False)
            reactor.watch(in_fd, select.EPOLLIN, self._readable)
        else:
            from .entrances import Door, Entrance

            self._entrance = Entrance(reactor, self._kept_lease.token, in_fd, link.fd, self._on_input)
            if processes.lifetime is not None and not self._kept_lease.idles_alone:
                processes.lifetime.is_detached = self._kept_lease.alone
            if isolated:
                self._door = Door(reactor, self._kept_lease.token, self._on_input)
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

    def offer_shortcut(self) -> dict[str, Any]:
        """Return the fields of a HELLO that offer the host pipes past the engine, in place of those offered before."""
        if not self._has_shortcut:
            return {}
        self._withdraw_shortcut()
        shortcut = self._shortcut = Shortcut(own_input=self._kept_lease is not None)
        if self._entrance is not None:
            self._offered = self._entrance.beside(shortcut.in_fd, shortcut.out_fd)
        return shortcut.offer

    def _withdraw_shortcut(self) -> None:
        if self._shortcut is not None:
            self._shortcut.release()
        if self._offered is not None:
            self._offered.close()
        self._shortcut = self._offered = None

    def _on_input(self, entrance: Entrance, piece: bytes | memoryview | Call | None) -> None:
        """Handle what arrived at an entrance of a kept sandbox."""
        lease = self._kept_lease
        if lease is None:
            return
        if entrance is self._offered and self._shortcut is not None:  # its host has opened both pipes
            self._shortcut.release()
            self._entrance, self._offered = entrance, None
        if piece is None:
            self._link.hang_up(entrance.out_fd)
            if entrance is self._entrance and entrance.ends_with_host:
                lease.vacate()
                self._egress.drop_connections(alone=True)
                self._requests.end_streams()
        elif isinstance(piece, Call):
            if lease.accepts(piece, answered=self._decoder.begun):
                self._change_host(lease, piece, entrance)
        elif entrance is self._entrance and not self._broken:
            try:
                self._feed_own(piece)
                lease.renew()
            except wire.WireError as error:
                print(f"the host is not understood: {error}", file=sys.stderr)
                self._broken = True
                self._link.frame(Kind.DETACH, self._link.key(0))  # makes the host call

    def _change_host(self, lease: KeptLease, call: Call, entrance: Entrance) -> None:
        self._withdraw_shortcut()
        self._entrance = entrance
        if not lease.same_host(call):
            self._requests.forget_host()
        self._decoder = wire.Decoder(call.nonce, self._taker)
        self._assembler = wire.Assembler()
        self._broken = False
        self._link.restart(call.nonce, lease.accept(call), entrance.out_fd)
        self._requests.end_streams()
        self._egress.drop_connections(alone=False)

    def _kept_frame(self, lease: KeptLease, kind: int, key: int, payload: bytes) -> None:
        if kind == Kind.HELLO:
            self._link.message(Kind.HELLO, key, {**greeting(), **self.about, **self.offer_shortcut()})
        elif kind == Kind.DETACH:
            lease.detached = True
            self._egress.drop_connections(alone=True)
            self._requests.acknowledge(wire.unpack_message(payload)[0].get("acknowledged"))

    def _taker(self, channel: int) -> wire.Taker | None:
        """Return the function that receives what a DATA frame of the channel carries, or None if it is kept until it is whole."""
        return self._egress.taker(channel) or self._requests.taker(self._link.key(channel))

    def _feed_own(self, data: bytes | memoryview) -> None:
        """Serve this host's frames in ``data``. The engine may have held bytes of an earlier host until now. Raises WireError."""
        while data:
            try:
                self.feed(data)
                return
            except wire.ForeignNonceError:
                data = self._decoder.skip_foreign()

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
            self._assembler.drop(channel)  # the request may have been cancelled while it was being sent
            self._requests.cancel(key)
        elif kind == Kind.PING:
            self._link.frame(Kind.PONG, key, payload[:64])
        elif kind == Kind.ROUTE and self._shortcut is not None and self._offered is None:
            self._link.reroute(self._shortcut.out_fd)
            self._shortcut.release()  # so that only the host reads from it
            self._shortcut = None
        elif self._kept_lease is not None:
            self._kept_frame(self._kept_lease, kind, key, payload)


def greeting() -> dict[str, Any]:
    """Return the fields of the HELLO to every host."""
    return {"protocol": wire.PROTOCOL, "python": sys.version.split()[0]}
