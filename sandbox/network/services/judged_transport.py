"""Ask an upstream that a tenant chose: each connection is resolved once, judged by the ceiling, and made to that very address."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore
import httpx

from sandbox.network.ceiling import Ceiling
from sandbox.network.dialling import RefusedError, UnreachableError, route
from sandbox.network.policy import Network
from sandbox.network.upstream_proxy import MOST_HEAD_BYTES, ProxyError, UpstreamProxy, check_status, connect_head


class JudgedBackend(httpcore.AsyncNetworkBackend):
    """Connects to what the ceiling allows now, through the host's proxy where there is one: that gets the judged address."""

    def __init__(self, ceiling: Callable[[], Ceiling | None]) -> None:
        self._ceiling = ceiling
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect, or raise httpcore.ConnectError with the reason in words."""
        ceiling = self._ceiling() or Ceiling()
        try:
            way = await route(Network("open", ceiling.opened), host, port, ceiling)
        except (RefusedError, UnreachableError) as error:
            raise httpcore.ConnectError(error.why) from error
        if way.proxy is not None:
            stream = await self._plain.connect_tcp(way.proxy.host, way.proxy.port, timeout, local_address, socket_options)
            return await _through(stream, way.proxy, str(way.addresses[0]), port, timeout)
        problem: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in way.addresses:
            try:
                return await self._plain.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem

    async def sleep(self, seconds: float) -> None:
        """See ``httpcore.AsyncNetworkBackend``."""
        await self._plain.sleep(seconds)


async def _through(
    stream: httpcore.AsyncNetworkStream, proxy: UpstreamProxy, target: str, port: int, seconds: float | None
) -> httpcore.AsyncNetworkStream:
    """Have the proxy connect ``stream`` to ``target``. The client speaks first: no byte comes behind that answer."""
    try:
        await stream.write(connect_head(proxy, target, port), seconds)
        head = b""
        while b"\r\n\r\n" not in head:
            piece = await stream.read(1024, seconds)
            head += piece
            if not piece or len(head) > MOST_HEAD_BYTES:
                raise ProxyError("it hung up" if not piece else f"the head of its answer is longer than {MOST_HEAD_BYTES} bytes")
        check_status(head.split(b"\r\n", 1)[0].decode("latin-1"))
    except BaseException as error:
        await stream.aclose()
        if isinstance(error, ProxyError):
            raise httpcore.ConnectError(f"the host's proxy {proxy.address} opened no way to {target}:{port}: {error}") from error
        raise
    return stream


class JudgedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport over connections that a ceiling has judged."""

    def __init__(self, ceiling: Callable[[], Ceiling | None], verify: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=JudgedBackend(ceiling),
        )
