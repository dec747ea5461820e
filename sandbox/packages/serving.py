"""The host's end of the package cache: plain HTTP from one sandbox, answered from its directory or by the upstreams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandbox.network.relay import Relay, joined

from .answers import Answer, Answers, said
from .cache import PackageCache, Upstreams
from .fetching import Fetcher
from .store import store_of

if TYPE_CHECKING:
    import h11

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
SEND_BYTES = 256 * 1024
HEAD_BYTES = 32 * 1024
# A connection on which the sandbox asks nothing more, or takes nothing more, is closed.
IDLE_SECONDS = 120.0


class CacheEnd:
    """Serves any number of connections of one sandbox, in one loop. ``upstreams`` are those of ``cache``."""

    def __init__(self, cache: PackageCache, upstreams: Upstreams) -> None:
        bases = tuple(base for base in (upstreams.pypi, upstreams.npm) if base is not None)
        self._fetcher = Fetcher(cache, store_of(cache.place(), cache.max_bytes), bases)
        self._answers = Answers(upstreams, self._fetcher)
        self._serving: set[asyncio.Task[None]] = set()

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """See ``names.Way``: a connection of the sandbox, served here."""
        reader, writer, relay = await joined(protocol)
        task = asyncio.create_task(self.serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._done)
        return relay, "the package cache"

    def _done(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a connection to the package cache failed", exc_info=task.exception())

    async def close(self) -> None:
        """End what is served, and the connections to the upstreams."""
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetcher.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it ends."""
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            while isinstance(request := await _next(connection, reader), h11.Request):
                await self._tell(connection, request, writer, await self._answered(request))
                if connection.our_state is h11.MUST_CLOSE or not isinstance(
                    await _next(connection, reader), h11.EndOfMessage
                ):
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._tell(connection, None, writer, said(error.error_status_hint, f"malformed request: {error}"))
        except (OSError, TimeoutError, h11.LocalProtocolError) as error:
            log.debug("a connection to the package cache ended: %s", error)
        finally:
            writer.close()

    async def _answered(self, request: h11.Request) -> Answer:
        method, target = request.method.decode(), request.target.decode("latin-1")
        if method not in ("GET", "HEAD"):
            return said(405, f"the package cache answers GET and HEAD only, not {method[:40]}")
        path = urlsplit(target).path if target.startswith("http://") else target.partition("?")[0]
        accept = ", ".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
        return await self._answers.to(path, accept)

    async def _tell(
        self, connection: h11.Connection, request: h11.Request | None, writer: asyncio.StreamWriter, answer: Answer
    ) -> None:
        import h11

        file, words = answer.file, "" if answer.status == 200 else answer.text.decode("utf-8", "replace")
        try:
            size = len(answer.text) if file is None else file.seek(0, 2)
            headers = {"Content-Type": answer.kind, "Content-Length": str(size), **answer.headers}
            if request is None or answer.status == 405:  # its body is not read
                headers["Connection"] = "close"
            reason = "".join(c if " " <= c <= "~" else " " for c in words)[:300].strip().encode()
            head = h11.Response(status_code=answer.status, headers=list(headers.items()), reason=reason or b"OK")
            writer.write(connection.send(head) or b"")
            if request is None or request.method != b"HEAD":
                await _send_body(connection, writer, answer)
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            async with asyncio.timeout(IDLE_SECONDS):
                await writer.drain()
        finally:
            if file is not None:
                file.close()


async def _send_body(connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    import h11

    if answer.file is None:
        writer.write(connection.send(h11.Data(data=answer.text)) or b"")
        return
    answer.file.seek(0)
    while piece := answer.file.read(SEND_BYTES):
        writer.write(connection.send(h11.Data(data=piece)) or b"")
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    import h11

    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        async with asyncio.timeout(IDLE_SECONDS):
            connection.receive_data(await reader.read(READ_BYTES))
