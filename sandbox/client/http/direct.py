"""Connections to a service that no proxy stands before.

They are httpcore's, like those of httpx, without what ``httpx.Client`` does for every request: cookies, redirects, hooks, merged
headers and addresses. That took half of a client's time. The head of a request and its body are sent together, so that a service
wakes up once.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

# Pieces of a body that are sent with the head.
MOST_TOGETHER_BYTES = 16 << 10
_END_OF_HEAD, _CHUNKED = b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*")
USER_AGENT = f"gamebox python-httpx/{httpx.__version__}"


class DirectConnections:
    """A pool of connections to ``url``; each request gets ``headers``, and ``opened`` each socket. May be used by many threads.

    Raises as httpx does, and RuntimeError after ``close``.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        trust: ssl.SSLContext | None = None,
        *,
        limits: httpx.Limits,
        socket_options: Iterable[tuple[int, int, int]],
        opened: Callable[[socket.socket], object],
    ) -> None:
        base = httpx.URL(url)
        self._base, self._prefix = base, base.raw_path.rstrip(b"/")
        self._origin = (base.raw_scheme, base.raw_host, base.port)
        self._headers = [(b"Host", base.netloc), *_pairs({"User-Agent": USER_AGENT, **headers})]
        self.is_closed = False
        self._pool = httpcore.ConnectionPool(
            ssl_context=trust,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=list(socket_options),
            network_backend=_Backend(opened),
        )

    def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        content: bytes | Iterable[bytes] | None,
        timeout: httpx.Timeout,
    ) -> httpx.Response:
        """Send a request and return the answer, of which only the head was read. Raises httpx.TransportError."""
        if self.is_closed:
            raise RuntimeError("the connections are closed")
        if params or not _PLAIN_PATH.fullmatch(path):
            whole = self._base.copy_with(path=self._prefix.decode() + path, params=params or None)
            target = whole.raw_path
        else:
            target = self._prefix + path.encode()
        sent = [*self._headers, *_pairs(headers)]
        if isinstance(content, bytes):
            sent.append((b"Content-Length", b"%d" % len(content)))
        elif content is not None and not any(name.lower() == "content-length" for name in headers):
            sent.append((b"Transfer-Encoding", b"chunked"))
        elif content is None and method not in ("GET", "HEAD", "DELETE"):
            sent.append((b"Content-Length", b"0"))
        scheme, host, port = self._origin
        url = httpcore.URL(scheme=scheme, host=host, port=port, target=target)
        extensions = {"timeout": timeout.as_dict()}
        request = httpcore.Request(method, url, headers=sent, content=content, extensions=extensions)
        with _as_httpx():
            answer = self._pool.handle_request(request)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=dict(answer.extensions)
        )

    def close(self) -> None:
        """Close the connections."""
        self.is_closed = True
        self._pool.close()


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]


class _Body(httpx.SyncByteStream):
    """The body of an answer as it comes."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with _as_httpx():
            self._answer.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raise the errors of httpcore as those of httpx, which have the same names."""
    try:
        yield
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        kind: Any = getattr(httpx, type(error).__name__)
        raise kind(str(error)) from error


class _Backend(httpcore.SyncBackend):
    """Makes streams that send a head with what follows it."""

    def __init__(self, opened: Callable[[socket.socket], object]) -> None:
        self._opened = opened

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        """See the base class."""
        return _Stream(super().connect_tcp(*args, **options), self._opened)


class _Stream(httpcore.NetworkStream):
    """A stream that keeps the head of a request until its body is written, or the answer is read.

    Not that of a body in chunks: its first one may be a long time coming.
    """

    def __init__(self, stream: httpcore.NetworkStream, opened: Callable[[socket.socket], object]) -> None:
        self._stream, self._opened, self._kept = stream, opened, b""
        self._is_head = True
        if isinstance(made := stream.get_extra_info("socket"), socket.socket):
            opened(made)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """See the base class."""
        if self._is_head and buffer.endswith(_END_OF_HEAD) and _CHUNKED not in buffer:
            self._is_head, self._kept = False, buffer
            return
        kept, self._kept, self._is_head = self._kept, b"", False
        if kept and len(buffer) <= MOST_TOGETHER_BYTES:
            buffer, kept = kept + buffer, b""
        if kept:
            self._stream.write(kept, timeout)
        self._stream.write(buffer, timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """See the base class."""
        if self._kept:
            self.write(b"", timeout)
        self._is_head = True
        return self._stream.read(max_bytes, timeout)

    def close(self) -> None:
        """See the base class."""
        self._stream.close()

    def start_tls(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        """See the base class."""
        return _Stream(self._stream.start_tls(*args, **options), self._opened)

    def get_extra_info(self, info: str) -> Any:
        """See the base class."""
        return self._stream.get_extra_info(info)
