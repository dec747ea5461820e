"""Connect through the HTTP proxy that the host's own environment names (CONNECT).

python-socks would be longer here: it takes whatever one read returns for the proxy's whole answer. An answer in two segments then
breaks, and a banner that comes with the answer (SSH, SMTP) is lost.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import field
from typing import TypeVar, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from sandbox.frozen import dataclass

MOST_HEAD_BYTES = 16 * 1024

P = TypeVar("P", bound=asyncio.Protocol)


class ProxyError(Exception):
    """The proxy refused the connection, or the setting names no HTTP proxy; the message says why."""


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """An HTTP proxy. ``user`` is "name:password" as the setting spells it, or ""; it appears in no text."""

    host: str
    port: int
    user: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"


def find_proxy(name: str, port: int) -> UpstreamProxy | None:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY choose for ``name``, or None to connect directly.

    Raises ProxyError if they name anything but an HTTP proxy.
    """
    named = getproxies().get("http" if port == 80 else "https")
    if not named or proxy_bypass(f"{name}:{port}"):
        return None
    parts = urlsplit(named if "://" in named else f"http://{named}")
    try:
        proxy_port = parts.port or 3128
    except ValueError:
        proxy_port = 0
    if parts.hostname is None or parts.scheme != "http" or not proxy_port:
        shown = parts.netloc.rpartition("@")[2]
        raise ProxyError(f"the host's proxy setting {parts.scheme}://{shown} is not an http:// proxy")
    return UpstreamProxy(parts.hostname, proxy_port, parts.netloc.rpartition("@")[0])


def connect_head(proxy: UpstreamProxy, target: str, port: int) -> bytes:
    """Return the request that asks the proxy for a connection to ``target``."""
    authority = f"[{target}]:{port}" if ":" in target else f"{target}:{port}"
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
    if proxy.user:
        head += f"Proxy-Authorization: Basic {base64.b64encode(unquote(proxy.user).encode()).decode()}\r\n"
    return f"{head}\r\n".encode()


def check_status(line: str) -> None:
    """Raise ProxyError unless the first line of its answer says that the connection is open."""
    if line.split(" ", 2)[1:2] != ["200"]:
        raise ProxyError(f"it answered {line[:200]!r}")


async def connect_via(proxy: UpstreamProxy, target: str, port: int, protocol: Callable[[], P]) -> P:
    """Connect to ``target`` through ``proxy`` and return the protocol that serves the connection.

    ``target`` reaches the proxy as it is: give the address that was judged. Raises ProxyError, OSError.
    """
    loop = asyncio.get_running_loop()
    transport, connecting = await loop.create_connection(_Connecting, proxy.host, proxy.port)
    try:
        transport.write(connect_head(proxy, target, port))
        status, early = await connecting.answer
    except BaseException:  # a timeout too
        transport.abort()
        raise
    try:
        check_status(status)
    except ProxyError:
        transport.abort()
        raise
    made = protocol()
    transport.set_protocol(made)
    transport.resume_reading()
    made.connection_made(transport)
    if early:
        made.data_received(early)
    if transport.is_closing():
        made.connection_lost(None)
    return made


class _Connecting(asyncio.Protocol):
    """Reads the answer to CONNECT. ``answer`` is its status line and the bytes that came behind its head."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._data += data
        head, end, early = self._data.partition(b"\r\n\r\n")
        if self.answer.done() or (not end and len(self._data) <= MOST_HEAD_BYTES):
            return
        if end:
            if self._transport is not None:
                self._transport.pause_reading()  # what comes now belongs to the next protocol
            self.answer.set_result((head.split(b"\r\n", 1)[0].decode("latin-1"), early))
        else:
            self.answer.set_exception(ProxyError(f"the head of its answer is longer than {MOST_HEAD_BYTES} bytes"))

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``."""
        self.connection_lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        if not self.answer.done():
            self.answer.set_exception(exc or ProxyError("it hung up"))
