"""Forward a loopback port of the host to a port of a sandbox, through the pipe."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
from collections.abc import Callable
from typing import Any, Self

from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import descriptors

from .relay import Relay
from .streams import MOST_CONNECTIONS, Streams

LOOPBACK = "127.0.0.1"
START_SECONDS = 10.0
# The guest gives a server 10 seconds to accept; a pipe that was cut never answers.
ANSWER_SECONDS = 15.0


class Forward:
    """A port of the sandbox, reachable at ``host`` and ``port`` (or ``url``) until this or the sandbox is closed.

    A context manager: ``with env.forward(8000).unwrap() as server:`` closes it at the end of the block.

    A connection is reset if nothing listens on the port in the sandbox. Safe for use by several threads.
    """

    host = LOOPBACK

    def __init__(self, streams: Streams, allocate: Callable[[], int], sandbox_port: int) -> None:
        """Create it closed; call ``open`` next. ``allocate`` returns a free channel of the host."""
        self.sandbox_port = sandbox_port
        self.port = 0
        self._streams = streams
        self._allocate = allocate
        self._server: asyncio.Server | None = None
        self._relays: set[Relay] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address for HTTP servers, as in "http://127.0.0.1:40123"."""
        return f"http://{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether the port is no longer forwarded."""
        return self._closed or self._streams.closed

    def model_dump(self) -> dict[str, Any]:
        """Return the fields that an envelope shows."""
        return {"url": self.url, "host": self.host, "port": self.port, "sandbox_port": self.sandbox_port}

    def to_text(self) -> str:
        """Return one line that describes the forward."""
        return f"Port {self.sandbox_port} of the sandbox is at {self.url}{' (closed)' if self.closed else ''}."

    def __repr__(self) -> str:
        return f"<Forward {self.url} to port {self.sandbox_port}{', closed' if self.closed else ''}>"

    def open(self, host_port: int = 0) -> None:
        """Listen on ``host_port`` of the host's loopback, or on any free port for 0. Raises SandboxError."""
        # Not a Future: a Ctrl-C can leave its lock taken. None means that it was closed meanwhile.
        made: queue.SimpleQueue[int | OSError | None] = queue.SimpleQueue()

        async def listen() -> None:
            try:
                made.put(await self._listen(host_port))
            except OSError as error:
                made.put(error)

        try:
            self._streams.spawn(listen)
            opened = None if self._streams.closed else made.get(timeout=START_SECONDS)
        except queue.Empty as error:
            self.close()
            if self._streams.closed:
                raise _sandbox_closed() from error
            raise SandboxUnavailableError(
                "no_answer",
                f"Port {self.sandbox_port} could not be forwarded: the sandbox's connections stood still for {START_SECONDS:g} s.",
                "It may be paused or starved of CPU: try again when it answers.",
            ) from error
        except BaseException as error:
            if isinstance(error, OSError) and descriptors.shortage(error) is not None:  # nothing was started
                raise self._open_error(error, host_port) from error
            self.close()  # a Ctrl-C or a signal handler's exception: the caller gets nothing to close
            raise
        if opened is None:
            raise _sandbox_closed()
        if isinstance(opened, OSError):
            raise self._open_error(opened, host_port) from opened
        self.port = opened

    async def _listen(self, host_port: int) -> int | None:
        """Return the port it listens on, or None, without listening, if it was closed meanwhile. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(
            self._accept, LOOPBACK, host_port, backlog=256, start_serving=False
        )
        try:
            if not server.sockets:  # asyncio skips a socket that cannot be created
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if self.closed:  # nobody would close it
                server.close()
                return None
            port: int = server.sockets[0].getsockname()[1]
            self._streams.servers.add(server)
            await server.start_serving()
        except BaseException:
            server.close()
            self._streams.servers.discard(server)
            raise
        return port

    def _open_error(self, error: OSError, host_port: int) -> SandboxError:
        if (found := descriptors.shortage(error)) is not None:
            return descriptors.refusal(found, f"Port {self.sandbox_port} could not be forwarded")
        why = "it is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or errno.EIO)
        return SandboxError(
            ErrorCode.invalid_configuration,
            f"Port {host_port} of the host cannot be listened on: {why}.",
            "Leave host_port out for a free one.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and cut the connections. Does nothing the second time."""
        self._closed = True

        def end() -> None:
            if self._server is not None:
                self._server.close()
                self._streams.servers.discard(self._server)
            for relay in list(self._relays):
                relay.abort("the forwarded port was closed")

        self._streams.in_loop(end)

    def _accept(self) -> Relay:
        return _Arrival(self._allocate(), self)

    def ask(self, relay: Relay) -> None:
        """Ask the guest to connect, for a client that connected here."""
        if self.closed or len(self._relays) >= MOST_CONNECTIONS:
            relay.abort("the forwarded port was closed" if self.closed else "too many connections")
            return
        self._relays.add(relay)
        self._streams.waiting.add(relay)
        late = asyncio.get_running_loop().call_later(ANSWER_SECONDS, lambda: self._give_up(relay, "no answer"))

        def answered(fields: dict[str, Any]) -> None:
            late.cancel()
            if relay not in self._relays:  # the client is gone
                self._streams.message(Kind.CANCEL, relay.channel, {})
            elif fields.get("open") is True:
                self._streams.waiting.discard(relay)
                self._streams.join(relay, lambda _: self._relays.discard(relay))
            else:
                self._give_up(relay, str(fields.get("failed"))[:200])

        relay.when_ended(lambda _: self._forget(relay))
        self._streams.expect(relay.channel, answered)
        self._streams.message(Kind.OPEN, relay.channel, {"port": self.sandbox_port})

    def _give_up(self, relay: Relay, why: str) -> None:
        self._streams.forget(relay.channel)
        relay.abort(why)

    def _forget(self, relay: Relay) -> None:
        self._relays.discard(relay)
        self._streams.waiting.discard(relay)

    def send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """See ``Streams.send``."""
        self._streams.send(kind, channel, payload)


def _sandbox_closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox is closed.", "Start another one.")


class _Arrival(Relay):
    """A connection to the forwarded port, not yet joined."""

    def __init__(self, channel: int, forward: Forward) -> None:
        super().__init__(channel, forward.send)
        self._forward = forward

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._forward.ask(self)
