"""Serve the package cache to one sandbox: plain HTTP, answered from the cache's directory or by its upstreams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandbox.network.relay import Relay
from sandbox.network.services.http_server import IDLE_SECONDS, HttpConnection, ServedRelays

from .cache import PackageCache, Upstreams
from .fetching import Fetcher
from .responses import Responder, Response, error_response
from .store import shared_store

if TYPE_CHECKING:
    import h11

SEND_BYTES = 256 * 1024
HEAD_BYTES = 32 * 1024


class CacheServer:
    """The package cache as one sandbox sees it. Lives in one loop. ``upstreams`` are those of ``cache``."""

    def __init__(self, cache: PackageCache, upstreams: Upstreams) -> None:
        bases = tuple(base for base in (upstreams.pypi, upstreams.npm) if base is not None)
        self._fetcher = Fetcher(cache, shared_store(cache.prepare_directory(), cache.max_bytes), bases)
        self._responder = Responder(upstreams, self._fetcher)
        self._relays = ServedRelays(self.serve)

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """Connect the sandbox; a ``names.Connector``."""
        relay, _ = await self._relays.open(protocol)
        return relay, "the package cache"

    async def close(self) -> None:
        """Close the sandbox's connections and those to the upstreams."""
        await self._relays.close()
        await self._fetcher.close()

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        relay: Relay | None = None,  # noqa: ARG002  a client of the cache reads its answers, and needs no notice
    ) -> None:
        """Answer the requests of one connection until it ends."""
        http = HttpConnection(reader, writer, HEAD_BYTES)

        async def answer(request: h11.Request) -> None:
            await _send(http, request, await self._respond(request))

        async def refuse(status: int, problem: str) -> None:
            await _send(http, None, error_response(status, f"malformed request: {problem}"))

        await http.serve(answer, refuse)

    async def _respond(self, request: h11.Request) -> Response:
        method, target = request.method.decode(), request.target.decode("latin-1")
        if method not in ("GET", "HEAD"):
            return error_response(405, f"the package cache answers GET and HEAD only, not {method[:40]}")
        try:
            path = urlsplit(target).path if target.startswith("http://") else target.partition("?")[0]
        except ValueError:  # of an address in brackets
            return error_response(400, f"{target[:200]!r} is not a URL")
        accept = ", ".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
        return await self._responder.respond(path, accept)


async def _send(http: HttpConnection, request: h11.Request | None, response: Response) -> None:
    """Send ``response`` and close its file; ``request`` is None for one that was malformed."""
    import h11

    file, words = response.file, "" if response.status == 200 else response.text.decode("utf-8", "replace")
    try:
        size = len(response.text) if file is None else file.seek(0, 2)
        headers = {"Content-Type": response.kind, "Content-Length": str(size), **response.headers}
        if request is None or response.status == 405:  # the body of such a request is not read
            headers["Connection"] = "close"
        reason = "".join(c if " " <= c <= "~" else " " for c in words)[:300].strip().encode()
        http.send(h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason or b"OK"))
        if request is None or request.method != b"HEAD":
            await _send_body(http, response)
        http.send(h11.EndOfMessage())
        await _drain(http)
    finally:
        if file is not None:
            file.close()


async def _send_body(http: HttpConnection, response: Response) -> None:
    import h11

    if response.file is None:
        http.send(h11.Data(data=response.text))
        return
    response.file.seek(0)
    while piece := response.file.read(SEND_BYTES):
        http.send(h11.Data(data=piece))
        await _drain(http)


async def _drain(http: HttpConnection) -> None:
    """Wait for room in the buffer; a sandbox that takes nothing for IDLE_SECONDS is cut off with TimeoutError."""
    async with asyncio.timeout(IDLE_SECONDS):
        await http.writer.drain()
