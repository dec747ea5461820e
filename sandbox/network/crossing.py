"""From one sandbox to a port of another: their two pipes joined on the host, with no address that anything else could dial."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from collections.abc import Callable
from typing import Any

from sandbox.guest.wire import Kind

from .dialling import UnreachableError
from .relay import Relay
from .streams import Streams

# A guest answers at once, or after its own 10 s where the backlog of the server is full.
ANSWER_SECONDS = 12.0
GONE = "its sandbox is gone"


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
        answer: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._streams.spawn(lambda: self._ask(far, answer))
        why = GONE
        try:
            why = await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_SECONDS + 1)
        except TimeoutError:  # closed just now
            pass
        finally:
            if why:
                near.close()
        if why:
            raise UnreachableError(why)
        _, made = await asyncio.get_running_loop().create_connection(protocol, sock=near)
        return made, f"port {self.port}"

    # --- in the loop of the sandbox that is reached ------------------------------------------------------------------
    async def _ask(self, far: socket.socket, answer: concurrent.futures.Future[str]) -> None:
        loop, relay = asyncio.get_running_loop(), Relay(self._allocate(), self._streams.send)
        await loop.create_connection(lambda: relay, sock=far)
        answered: asyncio.Future[str] = loop.create_future()

        def take(fields: dict[str, Any]) -> None:
            if fields.get("open") is True:  # at once: bytes may follow
                self._streams.join(relay, lambda _: None)
            if not answered.done():
                answered.set_result("" if fields.get("open") is True else str(fields.get("failed"))[:200])

        self._streams.expect(relay.channel, take)
        self._streams.message(Kind.OPEN, relay.channel, {"port": self.port})
        why = GONE
        try:
            why = await asyncio.wait_for(answered, ANSWER_SECONDS)
        except TimeoutError:
            why = "it did not answer"
        finally:
            if why or answer.cancelled():
                self._streams.forget(relay.channel)
                relay.abort("")
            if not answer.cancelled():
                answer.set_result(why)
