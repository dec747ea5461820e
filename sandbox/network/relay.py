"""One connection of a sandbox: what comes on its channel goes out, what comes in goes on the channel, both under credit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol, cast

from sandbox.guest.wire import TUNNEL_WINDOW, Kind

from .allowance import Allowance

# Of what the far end has not taken yet; the sandbox gets no further credit while there is more.
WRITE_BUFFER = 256 * 1024
# Short enough that a request between two of them is not late.
CHUNK = 64 * 1024
CREDIT_STEP = TUNNEL_WINDOW // 4
# SO_LINGER with no time.
RESET = struct.pack("ii", 1, 0)


class Frames(Protocol):
    """Where frames to the guest go; raises OSError when the pipe is gone."""

    def __call__(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None: ...


class Relay(asyncio.Protocol):
    """Lives in the loop of its ``Egress``."""

    def __init__(self, channel: int, send: Frames, allowance: Allowance | None = None) -> None:
        self.channel = channel
        self.received_bytes = 0
        self.sent_bytes = 0
        self.began = self.last_active = time.monotonic()
        self._send = send
        self._allowance = allowance
        self._on_end: Callable[[str], None] | None = None
        self._why: str | None = None
        self._transport: asyncio.Transport | None = None
        self._window = TUNNEL_WINDOW
        self._held = bytearray()
        self._owed = 0
        self._writable = True
        self._far_ended = False
        self._told_end = False
        self._near_ended = False
        self._begun = False

    # --- the far end ------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._transport.pause_reading()  # until the sandbox was told that it is open

    def begin(self) -> None:
        """The sandbox knows that the connection stands: let bytes flow."""
        self._begun = True
        self._pass_on()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self.last_active = time.monotonic()
        self.received_bytes += len(data)
        if self._allowance is not None and (why := self._allowance.received(len(data))) is not None:
            self.abort(why)
            return
        self._held += data
        self._pass_on()

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``; the other direction stays open."""
        self._far_ended = True
        self._pass_on()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._end("" if exc is None else str(exc) or type(exc).__name__)

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._writable = False

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._writable = True
        self._give_credit()

    # --- the sandbox ------------------------------------------------------------------
    def take(self, payload: bytes) -> None:
        """The sandbox sent this; its amount was checked against the credit."""
        self.last_active = time.monotonic()
        if self._transport is None or self._transport.is_closing() or self._near_ended:
            return
        self.sent_bytes += len(payload)
        if self._allowance is not None and (why := self._allowance.sent(len(payload))) is not None:
            self.abort(why)
            return
        self._owed += len(payload)
        self._transport.write(payload)
        self._give_credit()

    def credit(self, size: int) -> None:
        """The sandbox took ``size`` bytes."""
        self._window = min(self._window + size, TUNNEL_WINDOW)
        self._pass_on()

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
        if self._writable and (self._owed >= CREDIT_STEP):
            owed, self._owed = self._owed, 0
            self._send(Kind.CREDIT, self.channel, owed.to_bytes(4, "big"))

    def _pass_on(self) -> None:
        if not self._begun:
            return
        while self._held and self._window:
            size = min(len(self._held), self._window, CHUNK)
            piece = bytes(memoryview(self._held)[:size])
            del self._held[:size]
            self._window -= size
            self._send(Kind.DATA, self.channel, piece)
        if self._far_ended:
            if not self._held and not self._told_end:
                self._told_end = True
                self._send(Kind.END, self.channel)
                self._close_when_done()
        elif self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if self._held else self._transport.resume_reading)()

    def _close_when_done(self) -> None:
        if self._told_end and self._near_ended and self._transport is not None:
            self._transport.close()

    def when_ended(self, call: Callable[[str], None]) -> None:
        """Call ``call(why)`` once when it is over, with "" for an orderly end; at once where it is already."""
        self._on_end = call
        if self._why is not None:
            self._end(self._why)

    def _end(self, why: str) -> None:
        self._why = why if self._why is None else self._why
        call, self._on_end = self._on_end, None
        if call is not None:
            call(self._why)
