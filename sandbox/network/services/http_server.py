"""Serve plain HTTP to one sandbox: what services with credentials and the package cache share.

h11 parses requests into values, so nothing of the sandbox's own framing is passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from sandbox.network.relay import Relay, open_served_relay

if TYPE_CHECKING:
    import h11

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
# A connection on which the sandbox sends nothing for this long is closed.
IDLE_SECONDS = 120.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Relay], Coroutine[Any, Any, None]]


class ServedRelays:
    """Connections of one sandbox that ``serve`` answers, each in a task. Lives in one loop."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.tasks: set[asyncio.Task[None]] = set()

    async def open(self, protocol: Callable[[], Relay]) -> tuple[Relay, asyncio.Task[None]]:
        """Connect the relay that ``protocol`` creates, and return it and the task that serves it."""
        reader, writer, relay = await open_served_relay(protocol)
        task = asyncio.create_task(self._serve(reader, writer, relay))
        self.tasks.add(task)
        task.add_done_callback(partial(self._done, writer))
        return relay, task

    def _done(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if task.cancelled():  # perhaps before it began, when it has closed nothing
            writer.transport.abort()
        elif (error := task.exception()) is not None:
            log.error("a connection of a sandbox failed", exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HttpConnection:
    """The server's end of one HTTP/1.1 connection. ``head_bytes`` bounds the head of a request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head_bytes: int) -> None:
        import h11

        self.writer = writer
        self._reader = reader
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes)

    async def serve(
        self, answer: Callable[[h11.Request], Awaitable[None]], refuse: Callable[[int, str], Awaitable[None]]
    ) -> None:
        """Call ``answer`` for each request until the connection ends, then close it.

        ``refuse(status, problem)`` answers a malformed request. An error of the connection is logged at level DEBUG.
        """
        import h11

        protocol = self._protocol
        try:
            try:
                while isinstance(request := await self.next_event(), h11.Request):
                    await answer(request)
                    while protocol.our_state is h11.DONE and protocol.their_state is h11.SEND_BODY:
                        await self.next_event()  # a body that the answer did not wait for
                    if protocol.our_state is h11.MUST_CLOSE or protocol.their_state is not h11.DONE:
                        return
                    protocol.start_next_cycle()
            except h11.RemoteProtocolError as error:
                if protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await refuse(error.error_status_hint, str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, h11.LocalProtocolError) as error:
            log.debug("an HTTP connection of a sandbox ended: %s", error)
        finally:
            self.writer.close()

    async def next_event(self) -> Any:
        """Return the next event of h11. Raises TimeoutError after IDLE_SECONDS, RemoteProtocolError, OSError."""
        import h11

        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(IDLE_SECONDS):
                self._protocol.receive_data(await self._reader.read(READ_BYTES))

    def send(self, event: h11.Event) -> None:
        """Write an event of h11 to the connection's buffer."""
        self.writer.write(self._protocol.send(event) or b"")

    def continue_if_asked(self) -> None:
        """Answer "100 Continue" if the sandbox waits for it before it sends the body."""
        import h11

        if self._protocol.they_are_waiting_for_100_continue:
            self.send(h11.InformationalResponse(status_code=100, headers=[]))

    @property
    def answer_begun(self) -> bool:
        """Whether the head of the answer was sent, so that no other answer can be."""
        import h11

        return self._protocol.our_state is not h11.SEND_RESPONSE
