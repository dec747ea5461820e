"""Connect to a port of a sandbox, from another one or from this process, by joining pipes. Nothing else can dial this."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sandbox.guest.protocol.wire import Kind
from sandbox.network.dialling import UnreachableError
from sandbox.network.relay import Relay
from sandbox.network.streams import MOST_CONNECTIONS, Streams

T = TypeVar("T")
# A guest answers at once, or after its own 10 s if the backlog of the server is full.
ANSWER_SECONDS = 12.0
GONE = "its sandbox is gone"
GIVEN_UP = "who asked for it is gone"
# What a guest says of a port without a server.
NO_SERVER = "nothing listens there"


class PortStream:
    """A connection to a port of a sandbox, for the tasks of one loop.

    If it is cut in the sandbox, ``reader`` and ``writer`` raise ConnectionResetError.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far: Relay,
        far_loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.reader, self.writer = reader, writer
        self._far, self._far_loop = far, far_loop
        loop = asyncio.get_running_loop()

        def cut(why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the connection with it
                loop.call_soon_threadsafe(self._cut, why)

        self._in_far_loop(lambda: far.when_cut(cut))

    def abort(self, why: str) -> None:
        """Cut it: the server in the sandbox sees a reset. Does nothing to one that has ended."""
        self._in_far_loop(lambda: self._far.abort(why))
        self.writer.transport.abort()

    def _cut(self, why: str) -> None:
        self.reader.set_exception(ConnectionResetError(why))
        self.writer.transport.abort()

    def _in_far_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            self._far_loop.call_soon_threadsafe(call)


class PeerPort:
    """A port of a sandbox that others can reach. ``streams`` and ``allocate``, which returns a free channel, are that sandbox's."""

    def __init__(self, streams: Streams, allocate: Callable[[], int], port: int) -> None:
        self.port = port
        self._streams = streams
        self._allocate = allocate

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """Connect, from the loop of another sandbox; a ``names.Connector``. Raises UnreachableError."""
        loop = asyncio.get_running_loop()

        async def connect(near: socket.socket) -> Relay:
            return (await loop.create_connection(protocol, sock=near))[1]

        made, far, far_loop = await self._joined(connect)
        _join_cuts(made, loop, far, far_loop)
        return made, f"port {self.port}"

    async def open_stream(self, limit: int) -> PortStream:
        """Connect, from any loop; ``limit`` is that of a StreamReader. Raises UnreachableError."""
        (reader, writer), far, far_loop = await self._joined(lambda near: asyncio.open_connection(sock=near, limit=limit))
        return PortStream(reader, writer, far, far_loop)

    async def _joined(
        self, connect: Callable[[socket.socket], Awaitable[T]]
    ) -> tuple[T, Relay, asyncio.AbstractEventLoop]:
        """Connect the far end, and the near one with ``connect``. Returns that, and the far relay with its loop."""
        if self._streams.closed:
            raise UnreachableError(GONE)
        near, far = socket.socketpair()
        answer: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        far_relay = Relay(self._allocate(), self._streams.send)
        made: T | None = None
        try:
            self._streams.spawn(lambda: self._connect(far_relay, far, answer))
        except OSError as error:  # no descriptor or thread for it
            near.close()
            far.close()
            raise UnreachableError(f"this host has no room for it ({error.strerror or error})") from error
        try:
            far_loop = await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_SECONDS + 1)
            made = await connect(near)
        except TimeoutError as error:  # closed just now
            raise UnreachableError(GONE) from error
        finally:
            if made is None:
                near.close()
                self._streams.in_loop(lambda: far_relay.abort(GIVEN_UP))
        return made, far_relay, far_loop

    async def _connect(
        self, relay: Relay, far: socket.socket, answer: concurrent.futures.Future[asyncio.AbstractEventLoop]
    ) -> None:
        """Open the far end, in the loop of the sandbox that is reached, and set ``answer``."""
        loop, why = asyncio.get_running_loop(), GONE
        try:
            await loop.create_connection(lambda: relay, sock=far)
            why = await self._ask_guest(relay)
        except TimeoutError:
            why = "it did not answer"
        finally:
            if why or answer.cancelled():
                self._streams.forget(relay.channel)
                self._streams.send(Kind.CANCEL, relay.channel)
                relay.abort(why or GIVEN_UP)
            if answer.set_running_or_notify_cancel():
                answer.set_exception(UnreachableError(why)) if why else answer.set_result(loop)

    async def _ask_guest(self, relay: Relay) -> str:
        """Ask the guest to connect. Returns why it did not, or "". Raises TimeoutError."""
        if (standing := self._streams.dialled) >= MOST_CONNECTIONS:
            return f"there are {standing} connections to its sandbox already, the most there may be"
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(fields: dict[str, Any]) -> None:
            if fields.get("open") is True:  # at once: bytes may follow
                self._streams.join(relay, lambda _: None)
            finish("" if fields.get("open") is True else str(fields.get("failed"))[:200])

        def finish(why: str) -> None:
            if not answered.done():
                answered.set_result(why)

        relay.when_ended(finish)  # before "join", which adds its own
        self._streams.expect(relay.channel, take)
        self._streams.message(Kind.OPEN, relay.channel, {"port": self.port})
        return await asyncio.wait_for(answered, ANSWER_SECONDS)


def _join_cuts(
    near: Relay, near_loop: asyncio.AbstractEventLoop, far: Relay, far_loop: asyncio.AbstractEventLoop
) -> None:
    """Cut each end when the other is cut: the socket pair between them shows an orderly end, which a server may ignore."""

    def cuts(relay: Relay, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def cut(why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the connection with it
                loop.call_soon_threadsafe(relay.abort, why)

        return cut

    near.when_cut(cuts(far, far_loop))
    with contextlib.suppress(RuntimeError):
        far_loop.call_soon_threadsafe(far.when_cut, cuts(near, near_loop))
