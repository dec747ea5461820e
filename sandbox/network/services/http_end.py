"""The host's end of a service: plain HTTP from the sandbox, asked of the upstream with what the sandbox does not know.

Requests are parsed by h11 and sent by httpx, as the values they are: nothing of the sandbox's framing reaches the upstream, so no
second request can hide in the first. Bodies are streamed both ways. No value of a header is logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandbox.network.relay import Relay, joined
from sandbox.text.masking import LEAST_CHARS, STAR, Mask, MaskedStream

from .service import PORT, Problem, Service

if TYPE_CHECKING:
    import h11
    import httpx

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
HEAD_BYTES = 64 * 1024
# Of the words in a reason phrase, which is a line.
REASON_CHARS = 300
# A service that says nothing for so long is given up: models think for minutes.
SILENCE_SECONDS = 600.0
CONNECT_SECONDS = 10.0
# A connection on which the sandbox asks nothing more is closed.
IDLE_SECONDS = 120.0
# Requests of one sandbox to one service at once; a further one waits so long for its turn.
AT_ONCE = 100
TURN_SECONDS = 10.0
# Of one connection, or of the host's own to say.
_NOT_PASSED_ON = {
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"content-length", b"accept-encoding", b"expect",
    # By these some servers take another method or path than those that were judged.
    b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url", b"forwarded",
    # A part of an answer may hold a part of a secret, which no mask finds.
    b"range", b"if-range",
}  # fmt: skip
_FORWARDED = b"x-forwarded-"
_NOT_PASSED_BACK = {
    b"connection", b"keep-alive", b"transfer-encoding", b"content-encoding", b"upgrade", b"alt-svc", b"proxy-authenticate",
    b"strict-transport-security", b"trailer", b"accept-ranges",
}  # fmt: skip


# What answers may be compressed by, under its usual name.
_PACKINGS = {"identity": "identity", "": "identity", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
GZIP = b"\x1f\x8b\x08"

# What a header echoes, these tell at level DEBUG.
_TELLING = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")


def _cancel(task: asyncio.Task[None], why: str) -> None:  # noqa: ARG001  every end is one
    task.cancel()


def _tell(relay: Relay | None, code: str, what: str, problem: Problem, kind: str = "") -> None:
    """Have the command that asked for ``what`` learn why it is not done; ahead of the answer."""
    if relay is not None and relay.tell is not None:
        relay.tell({"code": code, "what": what, "why": problem.why, "kind": kind or problem.kind, "about": problem.about})


class _SandboxGoneError(ConnectionError):
    """The sandbox ended its connection within a request."""


# The mask of the service that this task asks; None everywhere else in the application, whose records stay as they are.
_mask_of_task: ContextVar[Mask | None] = ContextVar("mask of the service", default=None)


def _masked(record: logging.LogRecord) -> bool:
    """A filter of logs: lets every record pass; what this module's own requests had logged is masked."""
    if (mask := _mask_of_task.get()) is not None:
        record.msg, record.args = mask.text(record.getMessage()), ()
    return True


class _UnsearchableError(ConnectionError):
    """An answer cannot be passed on: it holds a secret, or may, where that cannot be masked."""


class _Inside:
    """Looks for secrets within gzip data that no header names as such, as in a file that is downloaded."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._open: zlib._Decompress | None = None
        self._first, self._tail = True, b""

    async def holds_secret(self, piece: bytes) -> bool:
        """Whether there is one in the next piece of the answer."""
        if self._first and piece:
            self._first = False
            self._open = zlib.decompressobj(wbits=31) if piece.startswith(GZIP) else None
        return self._open is not None and await asyncio.to_thread(self._search, piece)

    def _search(self, data: bytes) -> bool:
        while data and self._open is not None:
            try:
                plain = self._open.decompress(data, READ_BYTES * 16)
            except zlib.error:
                self._open = None
                return False
            if self._mask.holds(self._tail + plain):
                return True
            self._tail = (self._tail + plain)[-self._mask.longest :]
            data = self._open.unconsumed_tail or self._open.unused_data
            if self._open.eof:
                self._open = zlib.decompressobj(wbits=31) if data.startswith(GZIP) else None
        return False


class ServiceEnd:
    """One service; serves any number of connections in one loop."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._mask = Mask.of_stars(service.secrets())
        self._client: httpx.AsyncClient | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def _upstream(self) -> httpx.AsyncClient:
        """Through the host's own proxy, where its environment names one. Raises OSError for a bundle that cannot be read."""
        import httpx  # takes 100 ms to import

        if self._client is None:
            bundle = self.service.ca_bundle
            verify: ssl.SSLContext | bool = True if bundle is None else ssl.create_default_context(cafile=bundle)
            timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=TURN_SECONDS)
            limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=20)
            # What one answer sets is the sandbox's to send again, and nothing for other requests.
            none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            self._client = httpx.AsyncClient(
                verify=verify, timeout=timeout, limits=limits, follow_redirects=False, cookies=none
            )
            for name in _TELLING:  # once for all services: a filter that is there is not added again
                logging.getLogger(name).addFilter(_masked)
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._client is not None:
            _mask_of_task.set(self._mask)
            await self._client.aclose()

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """A ``names.Way``: a connection of the sandbox, served here."""
        reader, writer, relay = await joined(protocol)
        task = asyncio.create_task(self.serve(reader, writer, relay))
        self._serving.add(task)
        task.add_done_callback(partial(self._served, writer))
        relay.when_ended(partial(_cancel, task))  # what was cut is asked no further
        return relay, urlsplit(self.service.upstream).netloc

    def _served(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if task.cancelled():  # perhaps before it began
            writer.transport.abort()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relay: Relay | None = None
    ) -> None:
        """Answer the requests of one connection until it ends; ``relay`` is told of what is refused."""
        import h11

        asked = False
        _mask_of_task.set(self._mask)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            while True:
                request = await self._next(connection, reader)
                if not isinstance(request, h11.Request):
                    return
                problem = await self._answer(connection, request, reader, writer, relay)
                asked = asked or problem is None
                if relay is not None:
                    relay.asked, relay.refused = asked, "" if problem is None else problem.why
                while connection.our_state is h11.DONE and connection.their_state is h11.SEND_BODY:
                    await self._next(connection, reader)  # what the answer did not wait for
                if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                _tell(relay, "service_refused", "a request", Problem(f"it is malformed: {error}"))
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
        self, connection: h11.Connection, request: h11.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        relay: Relay | None,
    ) -> Problem | None:  # fmt: skip
        """Ask it of the upstream, or refuse it: why."""
        method = request.method.decode()
        target, problem = self._asked(request, method)
        if problem is not None:
            _tell(relay, "service_refused", f"{method} {target}", problem)
            await self._say(connection, writer, 403, f"{self.service.host} refuses this: {problem.why}")
            return problem
        await self._ask(connection, request, target, reader, writer, relay)
        return None

    async def _ask(
        self, connection: h11.Connection, request: h11.Request, target: str, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter, relay: Relay | None,
    ) -> None:  # fmt: skip
        """Ask it of the upstream and pass its answer back, or say why there is none."""
        import h11
        import httpx

        method = request.method.decode()
        what = f"{method} {target}"
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        headers = self._headers(request)
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
        url = self.service.upstream.rstrip("/") + target
        try:
            body = self._body(connection, reader) if has_body else None
            async with self._upstream().stream(method, url, headers=headers, content=body) as answer:
                await self._pass_back(connection, answer, writer)
        except httpx.PoolTimeout:
            words = f"has {AT_ONCE} requests of this sandbox going on: end some, or ask again when some are answered"
            _tell(relay, "service_failed", what, Problem(words), "busy")
            await self._say(connection, writer, 503, f"{self.service.host} {words}")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if isinstance(error, _SandboxGoneError):
                raise
            why = self._mask.whole(f"{type(error).__name__}: {error}".encode()).decode("utf-8", "replace")
            begun = connection.our_state is not h11.SEND_RESPONSE
            _tell(relay, "service_failed", what, Problem(f"the answer broke off: {why}" if begun else why), "upstream")
            if begun:
                raise ConnectionError("the answer broke off") from error
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
                raise _SandboxGoneError("the request ended too soon")

    def _asked(self, request: h11.Request, method: str) -> tuple[str, Problem | None]:
        """Path and query of what is asked for, and why it is refused, or None."""
        target = request.target.decode("latin-1")
        if target.lower().startswith("http://"):  # as it is asked of a proxy
            authority, slash, rest = target[7:].partition("/")
            if authority.lower() not in (self.service.host, f"{self.service.host}:{PORT}"):
                return target, Problem(f"{target!r} is at another host")
            target = slash + rest if slash else "/"
        if sum(len(name) + len(value) for name, value in request.headers) > HEAD_BYTES:
            return target, Problem(f"its headers are longer than {HEAD_BYTES} bytes")
        framing = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
        if len(framing) > 1:
            return target, Problem("the length of its body is said twice")
        return target, self.service.problem(method, target) or self._sent_differently(method, target)

    def _sent_differently(self, method: str, target: str) -> Problem | None:
        """Why the path, as it would be sent, is not allowed; None where it is."""
        import httpx

        try:
            upstream = httpx.URL(self.service.upstream.rstrip("/") + "/")
            url = httpx.URL(self.service.upstream.rstrip("/") + target)
        except httpx.InvalidURL as error:
            return Problem(f"{target!r} is no plain path: {error}")
        sent, base = url.raw_path.decode("ascii"), upstream.raw_path.decode("ascii")
        same = sent.startswith(base) and (url.scheme, url.netloc) == (upstream.scheme, upstream.netloc)
        return self.service.problem(method, sent[len(base) - 1 :]) if same else Problem(f"{target!r} is no plain path")

    def _headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """What the upstream gets: the sandbox's own headers but those that the host sets.

        Some servers read "_" in a name as "-": a name that they take for one of the host's is left out as well.
        """
        given = {**self.service.plain_headers, **self.service.headers}
        own = {name.lower().replace("_", "-").encode() for name in given}
        passed = [
            (n, v)
            for n, v in request.headers
            if n == b"content-length"
            or not ((name := n.replace(b"_", b"-")) in own | _NOT_PASSED_ON or name.startswith(_FORWARDED))
        ]
        passed += [(name.encode(), value.encode()) for name, value in given.items()]
        # What is compressed could not be searched for secrets.
        return [*passed, (b"accept-encoding", b"identity")]

    async def _pass_back(
        self, connection: h11.Connection, answer: httpx.Response, writer: asyncio.StreamWriter
    ) -> None:
        import h11

        # Compressed all the same: only the plain text can be searched, and its length is another one.
        named = answer.headers.get("content-encoding", "").lower().replace(" ", "")
        packing = [_PACKINGS.get(name, name) for name in named.split(",")]
        unknown = next((name for name in packing if name not in _PACKINGS.values()), None)
        if unknown is not None:
            raise _UnsearchableError(f"the answer is compressed as {unknown[:40]!r}, in which no secret could be found")
        answer.headers["content-encoding"] = ", ".join(packing)
        packed = any(name != "identity" for name in packing)
        left_out = _NOT_PASSED_BACK | ({b"content-length"} if packed else set())
        headers = [(n, self._shown(n.lower(), v)) for n, v in answer.headers.raw if n.lower() not in left_out]
        inside = _Inside(self._mask)
        reason = self._mask.whole(answer.reason_phrase.encode("ascii", "replace"))
        head = h11.Response(status_code=answer.status_code, headers=headers, reason=reason)
        writer.write(connection.send(head) or b"")
        masked = MaskedStream(self._mask)
        first = True
        async for piece in answer.aiter_bytes() if packed else answer.aiter_raw():
            if await inside.holds_secret(piece):
                raise _UnsearchableError("a secret is in the answer, in compressed data")
            shown = masked.feed(self._mask.without_end(piece) if first else piece)
            first = first and not piece
            if shown:
                writer.write(connection.send(h11.Data(data=shown)) or b"")
            await writer.drain()
        rest = masked.finish()
        if rest:
            rest = STAR * len(rest) if len(rest) >= LEAST_CHARS else rest  # the answer was cut within a secret
            writer.write(connection.send(h11.Data(data=rest)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()

    def _shown(self, name: bytes, value: bytes) -> bytes:
        """The value of an upstream's header as the sandbox gets it; a redirect within the upstream leads to the service."""
        upstream = self.service.upstream.rstrip("/").encode()
        if name == b"location" and value.startswith(upstream + b"/"):
            value = self.service.url.rstrip("/").encode() + value[len(upstream) :]
        return self._mask.whole(value)

    async def _say(self, connection: h11.Connection, writer: asyncio.StreamWriter, status: int, words: str) -> None:
        import h11

        body = words.encode("utf-8", "replace") + b"\n"
        # Not cut: a part of a secret would not be found in the command's output.
        phrase = words if len(words) <= REASON_CHARS else words.partition(":")[0][:REASON_CHARS]
        reason = "".join(c if " " <= c <= "~" else "?" for c in phrase).encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
