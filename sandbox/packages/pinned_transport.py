"""Connect to the addresses that were judged, and not to what a second look-up of the name answers."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore
import httpx


class PinnedBackend(httpcore.AnyIOBackend):
    """Connects as usual, but for hosts of which ``pin`` has said the addresses."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, int], tuple[str, ...]] = {}

    def pin(self, host: str, port: int, addresses: Sequence[str]) -> None:
        """Connect to ``host`` at these addresses from now on."""
        self._addresses[host, port] = tuple(addresses)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See ``httpcore.AsyncNetworkBackend``."""
        problem: Exception | None = None
        for address in self._addresses.get((host, port), (host,)):
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem or httpcore.ConnectError(f"{host} has no address")


def use(backend: PinnedBackend, client: httpx.AsyncClient, verify: ssl.SSLContext) -> None:
    """Have ``client`` connect by ``backend`` where it uses no proxy: a transport of its own would lose the host's proxies."""
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    transport._pool = httpcore.AsyncConnectionPool(ssl_context=verify, network_backend=backend)  # noqa: SLF001
    client._transport = transport  # noqa: SLF001
