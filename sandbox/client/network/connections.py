"""The connections of a sandbox of a service: listed, and passed to a function as they end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx

from sandbox.client.http.events import EVENTS, SILENT_SECONDS, EventParser
from sandbox.client.http.service import AWAY, Call, Service, nonsense
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.connections import Connection

from .loop_thread import LoopThread

log = logging.getLogger(__name__)

Listener = Callable[[Connection], None]
# Neither a prompt nor the end of a sandbox is kept waiting for a service that is slow.
LOOK_SECONDS = 2.0
BEGIN_SECONDS = 10.0
LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.2, 5.0
# After these, too, the service may have connections to tell again.
_LATER = frozenset({ErrorCode.sandbox_paused, ErrorCode.capacity})


def numbered(data: Any, mask: Callable[[str], str]) -> tuple[int, Connection]:
    """Return a connection as the service has it, masked, and its number. Raises KeyError, TypeError or ValueError."""
    fields = dict(data)
    number = int(fields.pop("id"))
    found = Connection(**fields)
    return number, replace(found, host=mask(found.host), why=mask(found.why), rule=mask(found.rule))


class Connections:
    """The connections of one sandbox, whose address is what ``path`` returns: None if it is not in use. ``mask`` hides secrets."""

    def __init__(self, service: Service, path: Callable[[], str | None], mask: Callable[[str], str]) -> None:
        self._service, self._path, self._mask = service, path, mask
        self._changing = threading.RLock()
        self._listener: Listener | None = None
        self._feed: Feed | None = None

    @property
    def listener(self) -> Listener | None:
        """Who is passed each connection."""
        return self._listener

    def last(self) -> tuple[Connection, ...]:
        """Return the last 1,000, as the service has them now; () if it does not answer."""
        if (path := self._path()) is None:
            return ()
        call = Call("GET", f"{path}/connections", repeatable=True)
        try:
            return tuple(each for _, each in listed(self._service, call, self._service.json(call), self._mask))
        except SandboxError:
            log.info("the service did not list the connections", exc_info=True)
            return ()

    def listen(self, listener: Listener | None) -> None:
        """Pass each connection from now on to ``listener`` alone."""
        with self._changing:
            self.end()
            self._listener = listener
            self.begin(None)

    def begin(self, last: int | None) -> None:
        """Pass on those after the one with this number, or those from now on, if there is a listener and a sandbox."""
        with self._changing:
            if self._listener is not None and self._feed is None and (path := self._path()) is not None:
                self._feed = Feed(self._service, f"{path}/connections", self._listener, self._mask)
                self._feed.begin(last)

    def end(self) -> None:
        """Pass on what has ended until now, and no more."""
        with self._changing:
            feed, self._feed = self._feed, None
            if feed is not None:
                feed.end()


def listed(service: Service, call: Call, data: Any, mask: Callable[[str], str]) -> list[tuple[int, Connection]]:
    """Return the connections of an answer with their numbers. Raises SandboxUnavailableError for what is none."""
    try:
        return [numbered(each, mask) for each in data["items"]]
    except (KeyError, TypeError, ValueError) as error:
        raise nonsense(service, call.path) from error


class Feed:
    """Passes each connection that the service has at ``path`` to ``listener`` as it ends, from a thread of its own.

    A connection to the service that was cut is made again, and goes on after the last connection of the sandbox that was passed on.
    """

    def __init__(self, service: Service, path: str, listener: Listener, mask: Callable[[str], str]) -> None:
        self._service, self._path, self._listener, self._mask = service, path, listener, mask
        self._thread = LoopThread("gamebox-connections")
        self._last: int | None = None
        self._following: asyncio.Task[None] | None = None

    def begin(self, last: int | None) -> None:
        """Pass on those after the one with this number, or those from now on. A service that does not answer is asked later."""
        self._last = last
        with suppress(SandboxError):  # closed meanwhile, or late: it goes on in the background
            self._thread.run(self._begin(), BEGIN_SECONDS)

    def end(self) -> None:
        """Pass on what has ended until now, and no more."""
        if self._thread.is_current:  # by the listener itself
            if self._following is not None:
                self._following.cancel()
        else:
            with suppress(SandboxError):
                self._thread.run(self._finish(), 2 * LOOK_SECONDS)
        self._thread.close()

    async def _begin(self) -> None:
        if self._last is None:
            with suppress(SandboxError):
                found = await self._list()
                self._last = found[-1][0] if found else 0
        self._following = asyncio.create_task(self._follow())

    async def _finish(self) -> None:
        if self._following is None:
            return
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        try:
            found, last = await self._list(), self._last or 0
            if found and found[-1][0] < last:  # a service that was restarted counts anew
                last = 0
            for number, connection in found:
                if number > last:
                    self._pass_on(number, connection)
        except SandboxError as error:
            log.info("the service did not list the last connections: %s", error)

    async def _list(self) -> list[tuple[int, Connection]]:
        call = Call("GET", self._path, read_seconds=LOOK_SECONDS, repeatable=True, patience_seconds=0)
        async with self._service.asynchronous() as client:
            return listed(self._service, call, await self._service.json_awaited(call, client), self._mask)

    async def _follow(self) -> None:
        """Pass connections on until the sandbox is over, or this task is cancelled."""
        wait = LEAST_WAIT_SECONDS
        async with self._service.asynchronous() as client:
            while True:
                before = self._last
                try:
                    await self._pass_on_all(client)
                except SandboxError as error:
                    if not (error.retryable or getattr(error, "reason", "") in AWAY or error.code in _LATER):
                        log.info("the service tells no more connections: %s", error)
                        return
                except httpx.TransportError:
                    pass  # it is asked again
                wait = LEAST_WAIT_SECONDS if self._last != before else min(2 * wait, MOST_WAIT_SECONDS)
                await asyncio.sleep(wait)

    async def _pass_on_all(self, client: httpx.AsyncClient) -> None:
        headers = {"Accept": EVENTS, **({} if self._last is None else {"Last-Event-ID": str(self._last)})}
        call = Call("GET", self._path, headers=headers, read_seconds=SILENT_SECONDS, repeatable=True, patience_seconds=0)
        parser = EventParser()
        async with self._service.stream_awaited(call, client) as response:
            async for chunk in response.aiter_raw():
                for event in parser.feed(chunk):
                    if event.name == "connection":
                        self._pass_on(*self._read(event.data))

    def _read(self, text: str) -> tuple[int, Connection]:
        try:
            data: Mapping[str, Any] = json.loads(text)
            return numbered(data, self._mask)
        except (KeyError, TypeError, ValueError) as error:
            raise nonsense(self._service, self._path) from error

    def _pass_on(self, number: int, connection: Connection) -> None:
        self._last = number
        try:
            self._listener(connection)
        except Exception:  # as with a sandbox on this host
            log.exception("the listener for connections failed")

