"""The address of a service and the key to it: HTTP requests, sent again where that is safe, and their errors in our words."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import random
import re
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import httpx

from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.frozen import dataclass

from .codes import ProblemCode
from .direct import DirectConnections
from .hints import INVALID_ADDRESS, MISSING_KEY, UNREACHABLE, UNTRUSTED, hint_of
from .traces import trace_headers
from .trust import is_untrusted, trust_of

log = logging.getLogger(__name__)

# A service that restarts is ready within 2 s; one that was never reached is given up sooner.
RECONNECT_SECONDS = 30.0
FIRST_SECONDS = 2.0
# A sandbox that is being made may wait for its image to be built.
BEGUN_SECONDS = 600.0
CONNECT_SECONDS = 5.0
WRITE_SECONDS = 60.0
READ_SECONDS = 30.0
# Shorter than the 5 s after which servers close connections that nobody uses.
IDLE_SECONDS = 4.0
LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.05, 1.0
# What a host that has vanished costs: its end of a connection answers nothing any more.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# Nothing was done where one of these was answered, or raised.
_NOTHING_DONE = frozenset({429, 503})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# What httpx names the events after which there is another socket.
_OPENED = frozenset({"connection.connect_tcp.complete", "connection.start_tls.complete", "proxy.stream.start_tls.complete"})
# The reasons of errors after which a service may answer again.
AWAY = frozenset({"service_unreachable", "service_failed"})
# Answered by a proxy whose service is gone.
_GATEWAY = frozenset({502, 504})

URL, API_KEY = "GAMEBOX_URL", "GAMEBOX_API_KEY"


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. ``content`` makes its body anew each time it is sent.

    ``repeatable`` says that twice does no harm; ``joins`` that the second one waits for the answer of the first. A service that
    does not answer is tried for ``patience_seconds``.
    """

    method: str
    path: str
    json: bytes | None = None
    content: Callable[[], Iterable[bytes]] | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float | None = READ_SECONDS
    write_seconds: float | None = WRITE_SECONDS
    repeatable: bool = False
    joins: bool = False
    patience_seconds: float | None = None


class Service:
    """A service, by ``url`` and ``api_key`` or GAMEBOX_URL and GAMEBOX_API_KEY. May be used by many threads.

    ``ca_file``, or GAMEBOX_CA_FILE, has authorities whose certificates are trusted, too. Raises SandboxError
    ``invalid_configuration`` for a missing or invalid address, key or file.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, ca_file: str | os.PathLike[str] | None = None
    ) -> None:
        self.url, loopback = _checked_url(url or os.environ.get(URL))
        if not loopback and self.url.startswith("http:"):
            log.warning("the key to %s crosses the network in the clear: use its https address", self.url)
        self.api_key = _checked_key(api_key or os.environ.get(API_KEY))
        self.ca_file, self.trust = ca_file, trust_of(self.url, ca_file)
        headers = {"Authorization": f"Bearer {self.api_key}"}
        # The proxies of the environment are no way to this host.
        self._direct = loopback or not any(os.environ.get(name) for name in _PROXIES)
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "headers": headers,
            "trust_env": not loopback,
            "verify": True if self.trust is None else self.trust,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_SECONDS),
        }
        self._lock = threading.Lock()
        self._made: DirectConnections | httpx.Client | None = None
        self._closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._answered = False

    def __repr__(self) -> str:
        return f"<Service {self.url}>"

    def another(self) -> Service:
        """Return the same service with connections of its own."""
        return Service(self.url, self.api_key, self.ca_file)

    @property
    def is_direct(self) -> bool:
        """Whether no proxy of the environment is between this host and the service."""
        return self._direct

    @property
    def _connections(self) -> DirectConnections | httpx.Client:
        """The connections to the service; made when they are needed. Raises SandboxError after ``close``."""
        with self._lock:
            if self._closed:
                raise closed_meanwhile("none")
            if self._made is None and self._direct:
                limits, headers = self._options["limits"], self._options["headers"]
                self._made = DirectConnections(
                    self.url, headers, self.trust, limits=limits, socket_options=_KEEPALIVE, opened=self._note_socket
                )
            elif self._made is None:
                self._made = httpx.Client(**self._options)
            return self._made

    def asynchronous(self) -> httpx.AsyncClient:
        """Return other connections, for the tasks of one event loop; the caller closes them."""
        limits = self._options["limits"]
        verify = self._options["verify"]
        transport = httpx.AsyncHTTPTransport(verify, limits=limits, socket_options=_KEEPALIVE) if self._direct else None
        return httpx.AsyncClient(**self._options, transport=transport)

    def close(self) -> None:
        """Close the connections: requests of other threads fail at once. There are no others until ``reopen``."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
            sockets = list(self._sockets)
        for each in sockets:
            with suppress(OSError):  # a thread that waits for one would not notice that it is closed
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # not TLS's own, under which another thread may be reading
        if made is not None:
            made.close()

    def check_open(self, error: httpx.TransportError) -> None:
        """Raise SandboxUnavailableError if a connection broke because this was closed."""
        if self._closed:
            raise closed_meanwhile("unknown") from error

    def reopen(self) -> None:
        """Allow requests again after ``close``."""
        with self._lock:
            self._closed = False

    def request(self, call: Call) -> httpx.Response:
        """Send the request and return the answer, read to its end. Raises SandboxError for all but a 2xx."""
        return self._attempt(call, self._read)

    def send_once(self, call: Call) -> httpx.Response:
        """Send the request, not again, and return whatever is answered. Raises httpx.TransportError."""
        return self._read(call)

    def json(self, call: Call) -> Any:
        """Send the request and return the data of the answer. Raises SandboxError."""
        return self._data(call, self.request(call))

    async def json_awaited(self, call: Call, client: httpx.AsyncClient) -> Any:
        """Do what ``json`` does over the connections of ``client``, without a thread."""
        return self._data(call, await self._attempt_awaited(call, client, stream=False))

    @asynccontextmanager
    async def stream_awaited(self, call: Call, client: httpx.AsyncClient) -> AsyncIterator[httpx.Response]:
        """Do what ``stream`` does over the connections of ``client``, without a thread."""
        response = await self._attempt_awaited(call, client, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _attempt_awaited(self, call: Call, client: httpx.AsyncClient, *, stream: bool) -> httpx.Response:
        attempts = self.attempts(call)
        while True:
            try:
                response = await client.send(_request(client, call), stream=stream)
            except (httpx.TransportError, RuntimeError) as error:
                if client.is_closed:  # by another task
                    raise closed_meanwhile("unknown") from error
                if isinstance(error, RuntimeError):
                    raise
                if call.joins and isinstance(error, httpx.ReadTimeout) and await asyncio.to_thread(self.is_alive):
                    attempts = self.attempts(call)
                else:
                    await asyncio.sleep(attempts.seconds_after(error))
                continue
            self._answered = True
            if response.is_success:
                return response
            await response.aread()
            await asyncio.sleep(attempts.seconds_after(response))

    def _data(self, call: Call, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise _nonsense(self.url, f"{call.method} {call.path}") from error

    @contextmanager
    def stream(self, call: Call) -> Iterator[httpx.Response]:
        """Send the request, and let the block read the answer as it comes. Raises SandboxError for all but a 2xx.

        What the connection raises in the block is left to the block.
        """
        response = self._attempt(call, self._open)
        try:
            yield response
        finally:
            response.close()

    def attempts(self, call: Call) -> Attempts:
        """Return what decides whether the request is sent again."""
        seconds = RECONNECT_SECONDS if self._answered else FIRST_SECONDS
        return Attempts(
            self.url, call.repeatable, seconds if call.patience_seconds is None else call.patience_seconds
        )

    def is_alive(self) -> bool:
        """Return whether the service answers at all."""
        with suppress(SandboxError):
            return self.request(Call("GET", "/healthz", read_seconds=CONNECT_SECONDS, patience_seconds=0)).is_success
        return False

    def _attempt(self, call: Call, send: Callable[[Call], httpx.Response]) -> httpx.Response:
        attempts = self.attempts(call)
        while True:
            try:
                response = send(call)
            except httpx.TransportError as error:
                self.check_open(error)
                if call.joins and isinstance(error, httpx.ReadTimeout) and self.is_alive():
                    attempts = self.attempts(call)  # it is at work still
                else:
                    time.sleep(attempts.seconds_after(error))
                continue
            self._answered = True
            if response.is_success:
                return response
            response.read()
            time.sleep(attempts.seconds_after(response))

    def _read(self, call: Call) -> httpx.Response:
        response = self._open(call)
        try:
            response.read()
        except BaseException:
            response.close()
            raise
        return response

    def _open(self, call: Call) -> httpx.Response:
        made = self._connections
        try:
            if isinstance(made, DirectConnections):
                return made.send(call.method, call.path, call.params, **_sent(call))
            request = _request(made, call)
            request.extensions["trace"] = self._note
            return made.send(request, stream=True)
        except RuntimeError as error:
            if not made.is_closed:
                raise
            raise closed_meanwhile("none") from error  # by another thread, before anything was sent

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        """Note each socket that httpx opens."""
        if event in _OPENED and isinstance(made := info["return_value"].get_extra_info("socket"), socket.socket):
            self._note_socket(made)

    def _note_socket(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets.add(made)


def _request(client: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    """Return the request with a body made anew."""
    return client.build_request(call.method, call.path, params=call.params or None, **_sent(call))


def _sent(call: Call) -> dict[str, Any]:
    """Return what is sent with the line of a request, with a body made anew, and for how long it may take."""
    return {
        "headers": {**trace_headers(), **call.headers, **({} if call.json is None else {"Content-Type": "application/json"})},
        "content": call.json if call.content is None else call.content(),
        "timeout": httpx.Timeout(CONNECT_SECONDS, read=call.read_seconds, write=call.write_seconds, pool=None),
    }


class Attempts:
    """Decides whether a request is sent again, and when, for up to ``seconds`` after the first failure.

    A service that answers, and is busy, is asked for longer.
    """

    def __init__(self, url: str, repeatable: bool, seconds: float) -> None:
        self._url, self._repeatable, self._seconds = url, repeatable, seconds
        self._began: float | None = None
        self._wait = LEAST_WAIT_SECONDS

    def seconds_after(self, failure: httpx.TransportError | httpx.Response) -> float:
        """Return how long to wait before the request is sent again. Raises SandboxError if it may not be."""
        now, seconds = time.monotonic(), self._seconds
        self._began = now if self._began is None else self._began
        wait = self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, guards nothing
        if isinstance(failure, httpx.Response):
            wait = max(wait, _retry_after(failure))
            is_begun, status = _is_begun(failure), failure.status_code
            seconds = BEGUN_SECONDS if is_begun else RECONNECT_SECONDS
            again = status in _NOTHING_DONE or is_begun or (self._repeatable and status in _GATEWAY)
        else:
            again = (self._repeatable or isinstance(failure, _NOT_SENT)) and not is_untrusted(failure)
        if not again or now + wait > self._began + seconds:
            raise self._error(failure)
        self._wait = min(2 * self._wait, MOST_WAIT_SECONDS)
        return wait

    def _error(self, failure: httpx.TransportError | httpx.Response) -> SandboxError:
        return error_of(failure, self._url) if isinstance(failure, httpx.Response) else unreachable(failure, self._url)


def closed_meanwhile(effects: str) -> SandboxUnavailableError:
    """Return the error of a request whose environment was closed by another thread or task."""
    error = SandboxUnavailableError("closed", "The environment was closed meanwhile.", "Make a new environment.")
    error.effects = effects
    return error


def unreachable(error: Exception, url: str) -> SandboxUnavailableError:
    """Return the error for a service that does not answer."""
    gone = SandboxUnavailableError(
        "service_unreachable",
        f"The service at {url} does not answer: {_words_of(error)}.",
        UNTRUSTED if is_untrusted(error) else UNREACHABLE,
    )
    gone.effects = "none" if isinstance(error, _NOT_SENT) else "unknown"
    return gone


def _words_of(error: Exception) -> str:
    """Return what is wrong with a connection, without the numbers of the system."""
    if isinstance(error, httpx.TimeoutException):
        return "it accepts connections but sends no answer" if isinstance(error, httpx.ReadTimeout) else "the connection timed out"
    return re.sub(r"^\[[^\]]*\] ", "", str(error)).rstrip(".") or "the connection broke"


def error_of(response: httpx.Response, url: str) -> SandboxError:
    """Return the error that an answer other than a 2xx stands for: that of its problem+json, if it has one."""
    try:
        problem = response.json()
        text = str(problem.get("detail") or problem.get("title") or "")
    except (ValueError, AttributeError):
        problem, text = {}, ""
    if not text:
        failed = SandboxUnavailableError(
            "service_failed",
            f"The service at {url} answered {response.status_code} {response.reason_phrase}".rstrip() + ".",
            "See the log of the service, and of any proxy between it and this host.",
        )
        failed.effects = "none" if response.status_code in _NOTHING_DONE else "unknown"
        return failed
    error: SandboxError
    code = _code_of(problem.get("code"))
    hint = hint_of(code.value, str(problem.get("hint") or ""))
    if isinstance(reason := problem.get("reason"), str):
        error = SandboxUnavailableError(reason, text, hint)
    else:
        error = SandboxError(code, text, hint)
    error.retryable = problem.get("retryable") is True
    error.effects = problem["effects"] if problem.get("effects") in ("partial", "unknown") else "none"
    return error


def _code_of(code: object) -> StrEnum:
    """Return the code of a problem; one that this client does not know becomes ``internal_error``."""
    for known in (ErrorCode, ProblemCode):
        if isinstance(code, str) and code in known.__members__:
            return known[code]
    return ProblemCode.internal_error


def _nonsense(url: str, what: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "service_failed",
        f"The answer of the service at {url} to {what} is not what its API specifies.",
        "Check that the address is that of a Gamebox service, and that this client knows its version.",
    )


def nonsense(service: Service, what: str) -> SandboxUnavailableError:
    """Return the error for an answer that cannot be read."""
    return _nonsense(service.url, what)


def _is_begun(response: httpx.Response) -> bool:
    """Return whether the same request, to make a sandbox, is being carried out."""
    return response.status_code == httpx.codes.CONFLICT and ProblemCode.creation_in_progress.encode() in response.content


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0


def _checked_url(url: str | None) -> tuple[str, bool]:
    """Return the address, and whether it is on this host's loopback."""
    if not url:
        raise _invalid("The address of the service is missing.")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        valid = parts.scheme in ("http", "https") and bool(host) and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        valid, host = False, ""
    if not valid or parts.username is not None:
        raise _invalid(f"{url!r} is not the address of a service.")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    return url.rstrip("/"), loopback


def _checked_key(key: str | None) -> str:
    key = (key or "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise SandboxError(
            ErrorCode.invalid_configuration,
            "The key to the service is missing." if not key else "The key to the service contains invalid characters.",
            MISSING_KEY,
        )
    return key


def _invalid(message: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, message, INVALID_ADDRESS)
