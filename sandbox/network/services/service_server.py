"""Serve one upstream service to one sandbox: plain HTTP from the sandbox, sent on with credentials that it does not know.

Requests are parsed by h11 and sent by httpx as the values they are: nothing of the sandbox's framing reaches the upstream, so no
second request can hide in the first. Bodies are streamed both ways. No value of a header is logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandbox.network.ceiling import Ceiling
from sandbox.network.relay import Relay
from sandbox.text.masking import LEAST_CHARS, STAR, Mask, MaskedStream

from .http_server import HttpConnection, ServedRelays
from .service import PORT, Problem, Service

if TYPE_CHECKING:
    import h11
    import httpx

HEAD_BYTES = 64 * 1024
# Of a reason phrase, which is one line.
REASON_CHARS = 300
# An upstream that is silent for this long is given up: models think for minutes.
SILENCE_SECONDS = 600.0
CONNECT_SECONDS = 10.0
# Requests of one sandbox to one service at once; a further one waits TURN_SECONDS for its turn.
AT_ONCE = 100
TURN_SECONDS = 10.0
# How much of a compressed answer is unpacked at a time to search it for secrets.
SEARCH_BYTES = 1024 * 1024
# Headers of one connection, or that the host itself sets.
_NOT_SENT_ON = {
    b"host",
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"content-length",
    b"accept-encoding",
    b"expect",
    # By these some servers take another method or path than the one that was judged.
    b"x-http-method-override",
    b"x-http-method",
    b"x-method-override",
    b"x-original-url",
    b"x-rewrite-url",
    b"forwarded",
    # A part of an answer may hold a part of a secret, which no mask finds.
    b"range",
    b"if-range",
}
_FORWARDED_PREFIX = b"x-forwarded-"
_NOT_SENT_BACK = {
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"content-encoding",
    b"upgrade",
    b"alt-svc",
    b"proxy-authenticate",
    b"strict-transport-security",
    b"trailer",
    b"accept-ranges",
}
# Encodings of answers that can be searched for secrets, by their usual names.
_ENCODINGS = {"identity": "identity", "": "identity", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
GZIP = b"\x1f\x8b\x08"
# These log the headers of an answer at level DEBUG, and an answer may echo a secret.
_HEADER_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")

# The mask of the service whose request this task sends; None in the rest of the application, whose log records stay as they are.
_mask_of_task: ContextVar[Mask | None] = ContextVar("mask of the service", default=None)


def _mask_record(record: logging.LogRecord) -> bool:
    """Mask the log records of this module's own requests; a filter that lets every record pass."""
    if (mask := _mask_of_task.get()) is not None:
        record.msg, record.args = mask.text(record.getMessage()), ()
    return True


def _notify(relay: Relay | None, code: str, what: str, problem: Problem, kind: str = "") -> None:
    """Tell the command that asked for ``what`` why it fails; this arrives ahead of the answer."""
    if relay is not None and relay.notify is not None:
        relay.notify(
            {"code": code, "what": what, "why": problem.why, "kind": kind or problem.kind, "about": problem.about}
        )


class _SandboxGoneError(ConnectionError):
    """The sandbox ended its connection within a request."""


class _UnsearchableError(ConnectionError):
    """An answer cannot be sent back: it holds a secret, or may hold one, where it cannot be masked."""


class _GzipSearch:
    """Searches a download for secrets in gzip data that no header announces."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._unpacker: zlib._Decompress | None = None
        self._first, self._tail = True, b""

    async def holds_secret(self, piece: bytes) -> bool:
        """Return whether the next piece of the answer holds a secret."""
        if self._first and piece:
            self._first = False
            self._unpacker = zlib.decompressobj(wbits=31) if piece.startswith(GZIP) else None
        return self._unpacker is not None and await asyncio.to_thread(self._search, piece)

    def _search(self, data: bytes) -> bool:
        while data and self._unpacker is not None:
            try:
                plain = self._unpacker.decompress(data, SEARCH_BYTES)
            except zlib.error:
                self._unpacker = None
                return False
            if self._mask.holds(self._tail + plain):
                return True
            self._tail = (self._tail + plain)[-self._mask.longest :]
            data = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if self._unpacker.eof:
                self._unpacker = zlib.decompressobj(wbits=31) if data.startswith(GZIP) else None
        return False


def _no_ceiling() -> None:
    """Bound nothing: the service is the host's own."""


class ServiceServer:
    """Serves one service on any number of connections, in one loop. ``ceiling`` bounds its upstream, if there is one."""

    def __init__(self, service: Service, ceiling: Callable[[], Ceiling | None] = _no_ceiling) -> None:
        self.service = service
        self._ceiling = ceiling
        self._mask = Mask.of_stars(service.secrets())
        self._client: httpx.AsyncClient | None = None
        self._relays = ServedRelays(self.serve)

    def _upstream(self) -> httpx.AsyncClient:
        """Return the client, which uses the host's own proxy settings, and is bound by a ceiling that was there before it.

        Raises OSError if ``ca_bundle`` cannot be read.
        """
        import httpx  # takes 100 ms to import

        if self._client is None:
            bundle = self.service.ca_bundle
            verify = httpx.create_ssl_context() if bundle is None else ssl.create_default_context(cafile=bundle)
            timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=TURN_SECONDS)
            limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=20)
            # A cookie that an answer sets belongs to the client in the sandbox, not to other requests.
            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            self._client = httpx.AsyncClient(
                verify=verify,
                timeout=timeout,
                limits=limits,
                follow_redirects=False,
                cookies=no_cookies,
                transport=None if self._ceiling() is None else _judged(self._ceiling, verify, limits),
                trust_env=self._ceiling() is None,
            )
            for name in _HEADER_LOGGERS:  # adding a filter again does nothing
                logging.getLogger(name).addFilter(_mask_record)
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        await self._relays.close()
        if self._client is not None:
            _mask_of_task.set(self._mask)
            await self._client.aclose()

    async def dial(self, protocol: Callable[[], Relay]) -> tuple[Relay, str]:
        """Connect the sandbox; a ``names.Connector``."""
        relay, task = await self._relays.open(protocol)

        def cancel(_why: str) -> None:  # stop asking the upstream for a sandbox that is gone
            task.cancel()

        relay.when_ended(cancel)
        return relay, urlsplit(self.service.upstream).netloc

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relay: Relay | None = None
    ) -> None:
        """Answer the requests of one connection until it ends, and notify ``relay`` of those that fail."""
        _mask_of_task.set(self._mask)
        http = HttpConnection(reader, writer, HEAD_BYTES)
        reached_upstream = False

        async def answer(request: h11.Request) -> None:
            nonlocal reached_upstream
            problem = await self._answer(http, request, relay)
            reached_upstream = reached_upstream or problem is None
            if relay is not None:
                relay.reached_upstream, relay.refusal = reached_upstream, "" if problem is None else problem.why

        async def refuse(status: int, problem: str) -> None:
            _notify(relay, "service_refused", "a request", Problem(f"it is malformed: {problem}"))
            await _send_error(http, status, f"the request is malformed: {problem}")

        await http.serve(answer, refuse)

    async def _answer(self, http: HttpConnection, request: h11.Request, relay: Relay | None) -> Problem | None:
        """Send the request to the upstream, or refuse it. Returns why it was refused, or None."""
        method = request.method.decode()
        target, problem = self._judge(request, method)
        if problem is not None:
            _notify(relay, "service_refused", f"{method} {target}", problem)
            await _send_error(http, 403, f"{self.service.host} refuses this: {problem.why}")
            return problem
        await self._ask_upstream(http, request, target, relay)
        return None

    async def _ask_upstream(self, http: HttpConnection, request: h11.Request, target: str, relay: Relay | None) -> None:
        """Send the request to the upstream and its answer back, or answer why there is none."""
        import httpx

        method = request.method.decode()
        what = f"{method} {target}"
        http.continue_if_asked()
        headers = self._headers(request)
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
        url = self.service.upstream.rstrip("/") + target
        try:
            body = _read_body(http) if has_body else None
            async with self._upstream().stream(method, url, headers=headers, content=body) as answer:
                await self._send_back(http, answer)
        except httpx.PoolTimeout:
            words = f"has {AT_ONCE} requests of this sandbox going on: end some, or ask again when some are answered"
            _notify(relay, "service_failed", what, Problem(words), "busy")
            await _send_error(http, 503, f"{self.service.host} {words}")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if isinstance(error, _SandboxGoneError):
                raise
            why = self._mask.whole(f"{type(error).__name__}: {error}".encode()).decode("utf-8", "replace")
            begun = http.answer_begun
            problem = Problem(f"the answer broke off: {why}" if begun else why)
            _notify(relay, "service_failed", what, problem, "upstream")
            if begun:
                raise ConnectionError("the answer broke off") from error
            await _send_error(http, 502, f"{self.service.host} could not be asked: {why}")

    def _judge(self, request: h11.Request, method: str) -> tuple[str, Problem | None]:
        """Return path and query of the request, and why it is refused, or None."""
        target = request.target.decode("latin-1")
        if target.lower().startswith("http://"):  # the form for a proxy
            authority, slash, rest = target[7:].partition("/")
            if authority.lower() not in (self.service.host, f"{self.service.host}:{PORT}"):
                return target, Problem(f"{target!r} is at another host")
            target = slash + rest if slash else "/"
        if sum(len(name) + len(value) for name, value in request.headers) > HEAD_BYTES:
            return target, Problem(f"its headers are longer than {HEAD_BYTES} bytes")
        framing = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
        if len(framing) > 1:
            return target, Problem("the length of its body is said twice")
        return target, self.service.problem(method, target) or self._problem_as_sent(method, target)

    def _problem_as_sent(self, method: str, target: str) -> Problem | None:
        """Return why the path is not allowed in the form in which httpx would send it, or None."""
        import httpx

        try:
            upstream = httpx.URL(self.service.upstream.rstrip("/") + "/")
            url = httpx.URL(self.service.upstream.rstrip("/") + target)
        except httpx.InvalidURL as error:
            return Problem(f"{target!r} is not a plain path: {error}")
        sent, base = url.raw_path.decode("ascii"), upstream.raw_path.decode("ascii")
        same = sent.startswith(base) and (url.scheme, url.netloc) == (upstream.scheme, upstream.netloc)
        return (
            self.service.problem(method, sent[len(base) - 1 :]) if same else Problem(f"{target!r} is not a plain path")
        )

    def _headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """Return the headers for the upstream: the sandbox's own, except those that the host sets.

        Some servers read "_" in a name as "-": a name that they take for one of the host's is left out as well.
        """
        added = {**self.service.plain_headers, **self.service.headers}
        left_out = {name.lower().replace("_", "-").encode() for name in added} | _NOT_SENT_ON
        headers = [
            (n, v)
            for n, v in request.headers
            if n == b"content-length"
            or not ((name := n.replace(b"_", b"-")) in left_out or name.startswith(_FORWARDED_PREFIX))
        ]
        headers += [(name.encode(), value.encode()) for name, value in added.items()]
        # A compressed answer could not be searched for secrets.
        return [*headers, (b"accept-encoding", b"identity")]

    async def _send_back(self, http: HttpConnection, answer: httpx.Response) -> None:
        import h11

        # Some upstreams compress all the same: only the plain text can be searched, and its length differs.
        named = answer.headers.get("content-encoding", "").lower().replace(" ", "")
        encodings = [_ENCODINGS.get(name, name) for name in named.split(",")]
        unknown = next((name for name in encodings if name not in _ENCODINGS.values()), None)
        if unknown is not None:
            raise _UnsearchableError(f"the answer is compressed as {unknown[:40]!r}, in which no secret could be found")
        answer.headers["content-encoding"] = ", ".join(encodings)
        compressed = any(name != "identity" for name in encodings)
        left_out = _NOT_SENT_BACK | ({b"content-length"} if compressed else set())
        headers = [(n, self._mask_header(n.lower(), v)) for n, v in answer.headers.raw if n.lower() not in left_out]
        search = _GzipSearch(self._mask)
        reason = self._mask.whole(answer.reason_phrase.encode("ascii", "replace"))
        http.send(h11.Response(status_code=answer.status_code, headers=headers, reason=reason))
        masked = MaskedStream(self._mask)
        first = True
        async for piece in answer.aiter_bytes() if compressed else answer.aiter_raw():
            if await search.holds_secret(piece):
                raise _UnsearchableError("a secret is in the answer, in compressed data")
            shown = masked.feed(self._mask.without_end(piece) if first else piece)
            first = first and not piece
            if shown:
                http.send(h11.Data(data=shown))
            await http.writer.drain()
        rest = masked.finish()
        if rest:
            rest = STAR * len(rest) if len(rest) >= LEAST_CHARS else rest  # the answer ended within a secret
            http.send(h11.Data(data=rest))
        http.send(h11.EndOfMessage())
        await http.writer.drain()

    def _mask_header(self, name: bytes, value: bytes) -> bytes:
        """Return the value of an upstream's header for the sandbox; a redirect within the upstream leads to the service."""
        upstream = self.service.upstream.rstrip("/").encode()
        if name == b"location" and value.startswith(upstream + b"/"):
            value = self.service.url.rstrip("/").encode() + value[len(upstream) :]
        return self._mask.whole(value)


def _judged(
    ceiling: Callable[[], Ceiling | None], verify: ssl.SSLContext, limits: httpx.Limits
) -> httpx.AsyncBaseTransport:
    from .judged_transport import JudgedTransport  # brings httpx with it

    return JudgedTransport(ceiling, verify, limits)


async def _read_body(http: HttpConnection) -> AsyncIterator[bytes]:
    import h11

    while True:
        event = await http.next_event()
        if isinstance(event, h11.Data):
            yield bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return
        else:
            raise _SandboxGoneError("the request ended too soon")


async def _send_error(http: HttpConnection, status: int, words: str) -> None:
    """Answer with ``words`` as the reason phrase and the body, and close the connection."""
    import h11

    body = words.encode("utf-8", "replace") + b"\n"
    # A long phrase is not cut anywhere: no mask would find a part of a secret in the command's output.
    phrase = words if len(words) <= REASON_CHARS else words.partition(":")[0][:REASON_CHARS]
    reason = "".join(c if " " <= c <= "~" else "?" for c in phrase).encode()
    headers = [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    http.send(h11.Response(status_code=status, headers=headers, reason=reason))
    http.send(h11.Data(data=body))
    http.send(h11.EndOfMessage())
    await http.writer.drain()
