"""From one sandbox to a port of another: their two pipes joined on the host, with no address that anything else could dial."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from sandbox.guest.protocol.wire import Kind
from sandbox.network.dialling import UnreachableError
from sandbox.network.relay import Relay
from sandbox.network.streams import MOST_CONNECTIONS, Streams

# A guest answers at once, or after its own 10 s where the backlog of the server is full.
ANSWER_SECONDS = 12.0
GONE = "its sandbox is gone"
GIVEN_UP = "who asked for it is gone"


class Crossing:
    """A port of a sandbox as others reach it. ``streams`` and ``allocate`` (a free channel of the host's) are that sandbox's."""

    def __init__(self, streams: Streams, allocate: Callable[[], int], port: int) -> None:
        self.port = port
        self._streams = streams
        self._allocate = allocate

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """Connect, from the loop of another sandbox (see ``names.Way``). Raises UnreachableError."""
        if self._streams.closed:
            raise UnreachableError(GONE)
        near, far = socket.socketpair()
        answer: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        beyond = Relay(self._allocate(), self._streams.send)
        self._streams.spawn(lambda: self._ask(beyond, far, answer))
        made: Relay | None = None
        try:
            its_loop = await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_SECONDS + 1)
            _, made = await asyncio.get_running_loop().create_connection(protocol, sock=near)
        except TimeoutError as error:  # closed just now
            raise UnreachableError(GONE) from error
        finally:
            if made is None:
                near.close()
                self._streams.in_loop(lambda: beyond.abort(GIVEN_UP))
        _tie(made, asyncio.get_running_loop(), beyond, its_loop)
        return made, f"port {self.port}"

    # --- in the loop of the sandbox that is reached ------------------------------------------------------------------
    async def _ask(
        self, relay: Relay, far: socket.socket, answer: concurrent.futures.Future[asyncio.AbstractEventLoop]
    ) -> None:
        loop, why = asyncio.get_running_loop(), GONE
        try:
            await loop.create_connection(lambda: relay, sock=far)
            why = await self._answer(relay)
        except TimeoutError:
            why = "it did not answer"
        finally:
            if why or answer.cancelled():
                self._streams.forget(relay.channel)
                self._streams.send(Kind.CANCEL, relay.channel)
                relay.abort(why or GIVEN_UP)
            if answer.set_running_or_notify_cancel():
                answer.set_exception(UnreachableError(why)) if why else answer.set_result(loop)

    async def _answer(self, relay: Relay) -> str:
        """Have the guest dial: why it did not, "" where it did. Raises TimeoutError."""
        if (standing := self._streams.dialled) >= MOST_CONNECTIONS:
            return f"there are {standing} connections to its sandbox already, the most there may be"
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def take(fields: dict[str, Any]) -> None:
            if fields.get("open") is True:  # at once: bytes may follow
                self._streams.join(relay, lambda _: None)
            over("" if fields.get("open") is True else str(fields.get("failed"))[:200])

        def over(why: str) -> None:
            if not answered.done():
                answered.set_result(why)

        relay.when_ended(over)  # it was given up; "join" has another
        self._streams.expect(relay.channel, take)
        self._streams.message(Kind.OPEN, relay.channel, {"port": self.port})
        return await asyncio.wait_for(answered, ANSWER_SECONDS)


def _tie(one: Relay, its_loop: asyncio.AbstractEventLoop, other: Relay, others_loop: asyncio.AbstractEventLoop) -> None:
    """Have a cut of either end be one of both. Between them it would look like an orderly end, which a server need not answer."""

    def cuts(relay: Relay, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def cut(why: str) -> None:
            with contextlib.suppress(RuntimeError):  # closed, and the connection with it
                loop.call_soon_threadsafe(relay.abort, why)

        return cut

    one.when_cut(cuts(other, others_loop))
    with contextlib.suppress(RuntimeError):
        others_loop.call_soon_threadsafe(other.when_cut, cuts(one, its_loop))
