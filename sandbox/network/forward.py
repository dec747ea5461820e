"""Ports of a sandbox on a loopback address of the host: each connection there becomes one inside, through the pipe."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
from collections.abc import Callable
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.guest.wire import Kind

from .relay import Relay
from .streams import MOST_CONNECTIONS, Streams

LOOPBACK = "127.0.0.1"
START_SECONDS = 10.0


class Forward:
    """One forwarded port; ``open`` it before use. ``allocate`` answers a free channel of the host's."""

    def __init__(self, streams: Streams, allocate: Callable[[], int], port: int) -> None:
        self.port = port
        self.host_port = 0
        self._streams = streams
        self._allocate = allocate
        self._server: asyncio.Server | None = None
        self._arrived = 0

    def open(self, host_port: int = 0) -> int:
        """Listen on the host's loopback, on a free port for 0; answers the port. Raises SandboxError."""
        made: concurrent.futures.Future[int] = concurrent.futures.Future()

        async def listen() -> None:
            try:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(self._arrival, LOOPBACK, host_port, backlog=256)
                self._streams.servers.add(self._server)
                made.set_result(self._server.sockets[0].getsockname()[1])
            except OSError as error:
                made.set_exception(error)

        self._streams.spawn(listen)
        try:
            self.host_port = made.result(START_SECONDS)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or errno.EIO)
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"Port {host_port} of the host cannot be listened on: it {why}.",
                "Leave host_port out for a free one.",
            ) from error
        except TimeoutError as error:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is closed.", "Start another one.") from error
        return self.host_port

    def close(self) -> None:
        """Listen no more; connections that stand go on until the sandbox is closed."""

        def end() -> None:
            if self._server is not None:
                self._server.close()
                self._streams.servers.discard(self._server)

        self._streams.in_loop(end)

    # --- in the loop ------------------------------------------------------------------
    def _arrival(self) -> Relay:
        return _Arrival(self._allocate(), self)

    def ask(self, relay: Relay) -> None:
        """Someone connected: have the guest dial."""
        if self._arrived >= MOST_CONNECTIONS:
            relay.abort("too many connections")
            return
        self._arrived += 1

        def over(_: str) -> None:
            self._arrived -= 1

        def answered(fields: dict[str, Any]) -> None:
            if fields.get("open") is True:
                self._streams.join(relay, over)
            else:
                over("")
                relay.abort(str(fields.get("failed"))[:200])
                self._streams.forget(relay.channel)

        self._streams.expect(relay.channel, answered)
        self._streams.message(Kind.OPEN, relay.channel, {"port": self.port})

    def send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """See ``Streams.send``."""
        self._streams.send(kind, channel, payload)


class _Arrival(Relay):
    """A connection to the forwarded port, not yet joined."""

    def __init__(self, channel: int, forward: Forward) -> None:
        super().__init__(channel, forward.send)
        self._forward = forward

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._forward.ask(self)
