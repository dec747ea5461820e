"""A listener for /metrics alone, that needs no key: for a monitor on this host, or in a network of the operator's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.service.http.hosts import Hosts, parse_host

from .logs import log_event
from .metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

# A monitor asks every few seconds; others wait.
MOST_AT_ONCE = 16


class MetricsListener:
    """Answers on ``listener`` from ``begin`` to ``close``."""

    def __init__(self, metrics: Metrics, hosts: Hosts, listener: socket.socket) -> None:
        self._listener = listener
        config = uvicorn.Config(
            _application(metrics, hosts),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            limit_concurrency=MOST_AT_ONCE,
            timeout_graceful_shutdown=1,
        )
        self._server = _Beside(config)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Answer from now on."""
        host, port = self._listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        log_event(log, logging.INFO, "numbers for Prometheus need no key here", url=url)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def close(self) -> None:
        """Answer no more."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


class _Beside(uvicorn.Server):
    """A server beside another one, which hears the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def _application(metrics: Metrics, hosts: Hosts) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        text = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        host = parse_host(text)
        # A page of a stranger, in a browser of this host, comes with another name.
        if host is None or not hosts.is_own(host, (scope.get("server") or ("", None))[0]):
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This host is not one of allowed_hosts.\n"})
            return
        known = scope["type"] == "http" and scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        body = metrics.text() if known else b"GET /metrics is all there is here.\n"
        headers = [(b"content-type", (CONTENT_TYPE if known else "text/plain").encode()), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": 200 if known else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer
