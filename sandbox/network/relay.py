"""Pass the bytes of one connection between its channel on the pipe and its socket, in both directions under credit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol, cast

from sandbox.guest.protocol.wire import MAX_PAYLOAD, MOST_TUNNEL_WINDOW, TUNNEL_WINDOW, Kind, ReceiveWindow, SendWindow

from .allowance import Allowance

# The sandbox gets no further credit while more than this waits for the far end.
WRITE_BUFFER_BYTES = 256 * 1024
CREDIT_STEP = TUNNEL_WINDOW // 4
# The value of SO_LINGER that makes close() reset the connection.
RESET = struct.pack("ii", 1, 0)


class Frames(Protocol):
    """Sends a frame to the guest. Raises OSError if the pipe is gone."""

    def __call__(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None: ...


_threads = threading.local()


def _buffer() -> memoryview:
    """Return the buffer that all connections of this thread read into."""
    made: memoryview | None = getattr(_threads, "buffer", None)
    if made is None:
        made = _threads.buffer = memoryview(bytearray(MAX_PAYLOAD))
    return made


class Relay(asyncio.BufferedProtocol, asyncio.Protocol):
    """Lives in the loop of its ``Egress``. Reads no more than the guest gave credit for, so that no bytes wait here.

    All reads of a thread use one buffer: ``send`` must have used the bytes up when it returns. ``data_received`` takes what another
    protocol read before this one took over.
    """

    def __init__(self, channel: int, send: Frames, allowance: Allowance | None = None) -> None:
        self.channel = channel
        self.received_bytes = 0
        self.sent_bytes = 0
        # Set by a service: whether any request reached the upstream, and why the last one did not.
        self.reached_upstream, self.refusal = True, ""
        # Sends a notice to the command behind the connection; None until the sandbox knows that it is open.
        self.notify: Callable[[dict[str, str]], None] | None = None
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
        self._end_sent = False
        self._near_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._transport.pause_reading()  # until ``begin``
        asyncio.get_running_loop().call_soon(self._pause_again)

    def _pause_again(self) -> None:
        """Stop the transport of Debian's Python 3.11.2, which begins to read after ``connection_made`` whatever that asked for."""
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()
            self._transport.pause_reading()

    def begin(self) -> None:
        """Let bytes flow: the sandbox knows that the connection is open, or has given credit."""
        early, self._early = self._early, b""
        for at in range(0, len(early), MAX_PAYLOAD):
            self._pass_on(memoryview(early)[at : at + MAX_PAYLOAD])
        if self._outgoing.left and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  credit decides the size
        """See ``asyncio.BufferedProtocol``."""
        return _buffer()[: self._outgoing.left]

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._pass_on(_buffer()[:nbytes])
        if not self._outgoing.left and self._transport is not None:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Hold bytes that came before ``begin``; they are fewer than a connection's credit."""
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
        """See ``asyncio.BufferedProtocol``. The other direction stays open."""
        self._end_sent = True
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

    def take(self, payload: bytes | bytearray | memoryview) -> None:
        """Send bytes of the sandbox to the far end. The caller checked their number against the credit."""
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
        """Note that the sandbox took ``size`` bytes, and read on."""
        self._outgoing.add_credit(size)
        self.begin()

    def end(self) -> None:
        """Note that the sandbox sends no more."""
        self._near_ended = True
        if self._transport is not None and not self._transport.is_closing() and self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError as error:  # the far end is gone
                self.abort(error.strerror or str(error))
                return
        self._close_when_done()

    def cut(self, why: str, kind: str, about: str = "") -> None:
        """Cut the connection because of a rule or a limit, and notify the command behind it."""
        if self.notify is not None and self._why is None:
            self.notify({"code": "network_cut", "why": why, "kind": kind, "about": about})
        self.abort(why)

    def abort(self, why: str) -> None:
        """Reset the connection, so that the far end does not take it for the orderly end of the data."""
        transport, self._transport = self._transport, None
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()
        self._end(why)

    def _give_credit(self) -> None:
        if self._writable and self._incoming.credit_due:
            self._send(Kind.CREDIT, self.channel, self._incoming.credit())

    def _close_when_done(self) -> None:
        if self._end_sent and self._near_ended and self._transport is not None:
            self._transport.close()

    def when_ended(self, call: Callable[[str], None]) -> None:
        """Call ``call(why)`` once at the end, with "" for an orderly one; immediately if the connection has ended."""
        self._on_end.append(call)
        if self._why is not None:
            self._end(self._why)

    def when_cut(self, call: Callable[[str], None]) -> None:
        """Call ``call(why)`` once if the connection ends with a fault; immediately if it has."""
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


async def open_served_relay(protocol: Callable[[], Relay]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Relay]:
    """Connect a new relay to streams that this process serves, and return those and the relay. Leaks nothing if cancelled."""
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
