"""One connection of a sandbox: what comes on its channel goes out, what comes in goes on the channel, both under credit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol, cast

from sandbox.guest.protocol.wire import (
    MAX_PAYLOAD,
    MOST_TUNNEL_WINDOW,
    TUNNEL_WINDOW,
    Kind,
    ReceiveWindow,
    SendWindow,
)

from .allowance import Allowance

# Of what the far end has not taken yet; the sandbox gets no further credit while there is more.
WRITE_BUFFER = 256 * 1024
CREDIT_STEP = TUNNEL_WINDOW // 4
# SO_LINGER with no time.
RESET = struct.pack("ii", 1, 0)


class Frames(Protocol):
    """Where frames to the guest go; raises OSError when the pipe is gone."""

    def __call__(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None: ...


_threads = threading.local()


def _buffer() -> memoryview:
    """Where this thread reads into: one for all its connections."""
    made: memoryview | None = getattr(_threads, "buffer", None)
    if made is None:
        made = _threads.buffer = memoryview(bytearray(MAX_PAYLOAD))
    return made


class Relay(asyncio.BufferedProtocol, asyncio.Protocol):
    """Lives in the loop of its ``Egress``. Reads no more than the guest has credit for, so that nothing waits here.

    What is read goes through one buffer of the thread's: ``send`` has to be done with it when it returns. ``data_received`` is
    for what another protocol read before this one took the connection over.
    """

    def __init__(self, channel: int, send: Frames, allowance: Allowance | None = None) -> None:
        self.channel = channel
        self.received_bytes = 0
        self.sent_bytes = 0
        # Set by who serves it for the host: whether anything was asked of the upstream, and why the last request was not.
        self.asked, self.refused = True, ""
        # Told of what its command should know; set while the sandbox hears of it.
        self.tell: Callable[[dict[str, str]], None] | None = None
        self.began = self.last_active = time.monotonic()
        self._send = send
        self._allowance = allowance
        self._on_end: list[Callable[[str], None]] = []
        self._on_cut: Callable[[str], None] | None = None
        self._why: str | None = None
        self._transport: asyncio.Transport | None = None
        self._outgoing = SendWindow(TUNNEL_WINDOW, MOST_TUNNEL_WINDOW)
        self._incoming = ReceiveWindow(TUNNEL_WINDOW)
        self._early = b""
        self._writable = True
        self._told_end = False
        self._near_ended = False

    # --- the far end ------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._transport.pause_reading()  # until the sandbox was told that it is open

    def begin(self) -> None:
        """The sandbox knows that the connection stands, and has credit: let bytes flow."""
        early, self._early = self._early, b""
        for at in range(0, len(early), MAX_PAYLOAD):
            self._pass_on(memoryview(early)[at : at + MAX_PAYLOAD])
        if self._outgoing.left and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  credit decides
        """See ``asyncio.BufferedProtocol``."""
        return _buffer()[: self._outgoing.left]

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._pass_on(_buffer()[:nbytes])
        if not self._outgoing.left and self._transport is not None:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """What came before ``begin``; less than the credit of a connection."""
        self._early += data

    def _pass_on(self, data: memoryview) -> None:
        self.last_active = time.monotonic()
        self.received_bytes += len(data)
        if self._allowance is not None and (why := self._allowance.received(len(data))) is not None:
            self.cut(why, "limit", "network_bytes")
            return
        self._outgoing.use(len(data))
        self._send(Kind.DATA, self.channel, data)

    def eof_received(self) -> bool:
        """See ``asyncio.BufferedProtocol``; the other direction stays open."""
        self._told_end = True
        self._send(Kind.END, self.channel)
        self._close_when_done()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._end("" if exc is None else str(exc) or type(exc).__name__)

    def pause_writing(self) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._writable = False

    def resume_writing(self) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._writable = True
        self._give_credit()

    # --- the sandbox ------------------------------------------------------------------
    def take(self, payload: bytes | bytearray) -> None:
        """The sandbox sent this; its amount was checked against the credit."""
        self.last_active = time.monotonic()
        if self._transport is None or self._transport.is_closing() or self._near_ended:
            return
        self.sent_bytes += len(payload)
        if self._allowance is not None and (why := self._allowance.sent(len(payload))) is not None:
            self.cut(why, "limit", "network_bytes")
            return
        self._incoming.receive(len(payload))
        self._incoming.consume(len(payload))
        self._transport.write(payload)
        self._give_credit()

    def credit(self, size: int) -> None:
        """The sandbox took ``size`` bytes."""
        self._outgoing.add_credit(size)
        self.begin()

    def end(self) -> None:
        """The sandbox has no more to send."""
        self._near_ended = True
        if self._transport is not None and not self._transport.is_closing() and self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError as error:  # the far end has gone already
                self.abort(error.strerror or str(error))
                return
        self._close_when_done()

    def cut(self, why: str, kind: str, about: str = "") -> None:
        """Cut it for a rule or a limit of its own sandbox, whose command is told."""
        if self.tell is not None and self._why is None:
            self.tell({"code": "network_cut", "why": why, "kind": kind, "about": about})
        self.abort(why)

    def abort(self, why: str) -> None:
        """Cut it: reset, so that the far end does not take it for an orderly end of what was sent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()
        self._end(why)

    # ------------------------------------------------------------------
    def _give_credit(self) -> None:
        if self._writable and self._incoming.credit_due:
            self._send(Kind.CREDIT, self.channel, self._incoming.credit())

    def _close_when_done(self) -> None:
        if self._told_end and self._near_ended and self._transport is not None:
            self._transport.close()

    def when_ended(self, call: Callable[[str], None]) -> None:
        """Call ``call(why)`` once when it is over, with "" for an orderly end; at once where it is already."""
        self._on_end.append(call)
        if self._why is not None:
            self._end(self._why)

    def when_cut(self, call: Callable[[str], None]) -> None:
        """Call ``call(why)`` once when it ends in disorder; at once where it did already."""
        self._on_cut = call
        if self._why:
            self._end(self._why)

    def _end(self, why: str) -> None:
        self._why = why if self._why is None else self._why
        if self._why and self._on_cut is not None:
            cut, self._on_cut = self._on_cut, None
            cut(self._why)
        calls, self._on_end = self._on_end, []
        for call in calls:
            call(self._why)


async def joined(protocol: Callable[[], Relay]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Relay]:
    """Make a relay whose other end is served in this process: the streams of that end. Nothing stays open if it is cancelled."""
    near, far = socket.socketpair()
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(sock=far)
        _, relay = await asyncio.get_running_loop().create_connection(protocol, sock=near)
    except BaseException:
        near.close()
        if writer is None:
            far.close()
        else:
            writer.transport.abort()
        raise
    return reader, writer, relay
