"""The host's end of a service: plain HTTP from the sandbox, asked of the upstream with what the sandbox does not know.

Requests are parsed by h11 and sent by httpx, as the values they are: nothing of the sandbox's framing reaches the upstream, so no
second request can hide in the first. Bodies are streamed both ways.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandbox.masking import Mask, MaskedStream

from .services import Service

if TYPE_CHECKING:
    import h11
    import httpx

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
HEAD_BYTES = 64 * 1024
# A service that says nothing for so long is given up: models think for minutes.
SILENCE_SECONDS = 600.0
CONNECT_SECONDS = 10.0
# A connection on which the sandbox asks nothing more is closed.
IDLE_SECONDS = 120.0
# Of one connection, or of the host's own to say.
_NOT_PASSED_ON = {
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"content-length", b"accept-encoding", b"expect",
}  # fmt: skip
_NOT_PASSED_BACK = {
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"content-encoding",
    b"upgrade",
    b"alt-svc",
    b"proxy-authenticate",
}


class ServiceEnd:
    """One service; serves any number of connections in one loop."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._mask = Mask.of_stars(service.secrets())
        self._client: httpx.AsyncClient | None = None

    def _upstream(self) -> httpx.AsyncClient:
        import httpx  # takes 100 ms to import

        if self._client is None:
            bundle = self.service.ca_bundle
            verify: ssl.SSLContext | bool = True if bundle is None else ssl.create_default_context(cafile=bundle)
            timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
            self._client = httpx.AsyncClient(verify=verify, timeout=timeout, follow_redirects=False)
        return self._client

    async def close(self) -> None:
        """Close the connections to the upstream."""
        if self._client is not None:
            await self._client.aclose()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it ends."""
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            while True:
                request = await self._next(connection, reader)
                if not isinstance(request, h11.Request):
                    return
                await self._answer(connection, request, reader, writer)
                while connection.our_state is h11.DONE and connection.their_state is h11.SEND_BODY:
                    await self._next(connection, reader)  # what the answer did not wait for
                if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._say(connection, writer, error.error_status_hint, f"the request is malformed: {error}")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, h11.LocalProtocolError) as error:
            log.debug("a connection to the service %s ended: %s", self.service.name, error)
        finally:
            writer.close()

    async def _next(self, connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
        import h11

        while True:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(IDLE_SECONDS):
                connection.receive_data(await reader.read(READ_BYTES))

    async def _answer(
        self, connection: h11.Connection, request: h11.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:  # fmt: skip
        import h11
        import httpx

        method, target = request.method.decode(), request.target.decode("latin-1")
        if target.startswith("http://"):  # as it is asked of a proxy
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        problem = self._problem(request, method, target)
        if problem is not None:
            await self._say(connection, writer, 403, f"{self.service.host} refuses this: {problem}")
            return
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        headers = self._headers(request)
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
        url = self.service.upstream.rstrip("/") + target
        try:
            body = self._body(connection, reader) if has_body else None
            async with self._upstream().stream(method, url, headers=headers, content=body) as answer:
                await self._pass_back(connection, answer, writer)
        except httpx.HTTPError as error:
            if connection.our_state is not h11.SEND_RESPONSE:
                raise ConnectionError("the answer broke off") from error
            why = self._mask.whole(f"{type(error).__name__}: {error}".encode()).decode("utf-8", "replace")[:300]
            await self._say(connection, writer, 502, f"{self.service.host} could not be asked: {why}")

    async def _body(self, connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        import h11

        while True:
            event = await self._next(connection, reader)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise ConnectionError("the request ended too soon")

    def _problem(self, request: h11.Request, method: str, target: str) -> str | None:
        if sum(len(name) + len(value) for name, value in request.headers) > HEAD_BYTES:
            return f"its headers are longer than {HEAD_BYTES} bytes"
        return self.service.problem(method, target)

    def _headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """What the upstream gets: the sandbox's own headers but those that the host sets."""
        own = {name.lower().encode() for name in self.service.headers}
        passed = [
            (n, v) for n, v in request.headers if n not in own and (n not in _NOT_PASSED_ON or n == b"content-length")
        ]
        passed += [(name.encode(), value.encode()) for name, value in self.service.headers.items()]
        # What is compressed could not be searched for secrets.
        return [*passed, (b"accept-encoding", b"identity")]

    async def _pass_back(
        self, connection: h11.Connection, answer: httpx.Response, writer: asyncio.StreamWriter
    ) -> None:
        import h11

        headers = [(n, self._mask.whole(v)) for n, v in answer.headers.raw if n.lower() not in _NOT_PASSED_BACK]
        writer.write(
            connection.send(
                h11.Response(
                    status_code=answer.status_code,
                    headers=headers,
                    reason=answer.reason_phrase.encode("ascii", "replace"),
                )
            )
            or b""
        )
        masked = MaskedStream(self._mask)
        async for piece in answer.aiter_raw():
            shown = masked.feed(piece)
            if shown:
                writer.write(connection.send(h11.Data(data=shown)) or b"")
            await writer.drain()
        rest = masked.finish()
        if rest:
            writer.write(connection.send(h11.Data(data=rest)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()

    async def _say(self, connection: h11.Connection, writer: asyncio.StreamWriter, status: int, words: str) -> None:
        import h11

        body = words.encode("utf-8", "replace") + b"\n"
        reason = "".join(c if " " <= c <= "~" else "?" for c in words)[:300].encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
