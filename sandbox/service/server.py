"""The process of a service: its folder, its first key, the server and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from sandbox.environment.parts.loading import load

from .app import make_app, make_house
from .connections import MOST_TOGETHER
from .folder import own_folder
from .house import MOST_REQUESTS, House
from .http.connections import Connection
from .http.heads import HEAD_BYTES
from .keys import first_key
from .listener import listen
from .operators.exporting import exporting
from .operators.logs import log_event, logging_to
from .operators.metrics_listener import MetricsListener
from .operators.systemd import notify
from .operators.tracing import Tracing
from .operators.versions import check_guests
from .places import Places
from .ports.proxy import ignore_cut_responses
from .ports.upgrades import Upgrades
from .settings import Settings, read_address
from .store.database import STORE, Database
from .tls.given import check_tls
from .tls.local import keep_renewing, prepare

log = logging.getLogger(__name__)

# Of the listener for /metrics.
METRICS_CONNECTIONS = 64
# How often a service that ends with its last sandbox looks, and the states that it waits for.
LOOK_SECONDS = 0.5
LIVING = ("creating", "running", "paused", "deleting")
# Clients keep connections for later requests, and one that they send while theirs is being closed is lost: it must not be a time
# after which many send one.
KEEP_ALIVE_SECONDS = 75
# Of a message on a WebSocket, whatever parts it comes in.
FRAME_BYTES = 1 << 20


def serve(settings: Settings, started: Callable[[str, Path | None], None]) -> None:
    """Serve until SIGTERM or SIGINT. ``started(url, first_key)`` is called when requests are taken. Raises SandboxError."""
    check_tls(settings.tls_cert, settings.tls_key)
    with logging_to(None, settings.log_format, settings.log_level), exporting(os.environ) as tracing:
        _serve(settings, started, tracing)


def _serve(settings: Settings, started: Callable[[str, Path | None], None], tracing: Tracing | None) -> None:
    lock = own_folder(settings.data)
    try:
        descriptors = _raised_descriptor_limit()
        local = prepare(settings) if settings.tls_local else None
        check_guests(settings.data / STORE)
        database = Database(settings.data / STORE)
        house = make_house(settings, database, tracing)
        house.connections.tenants = Places(together := min(MOST_TOGETHER, descriptors // 8), together)
        # With more of them, or half as many as the process may have descriptors, a new one is answered 503.
        places = Places(min(MOST_REQUESTS, descriptors // 2), settings.address_connections)
        listener = listen(settings.host, settings.port, places, settings.behind_proxy)
        metrics = None
        if settings.metrics_listen is not None:
            metrics = listen(*read_address(settings.metrics_listen), Places(METRICS_CONNECTIONS, METRICS_CONNECTIONS))
        house.fleet.ceilings.own_ports = frozenset(each.getsockname()[1] for each in (listener, metrics) if each is not None)
        logging.getLogger("uvicorn.error").addFilter(ignore_cut_responses)
        config = uvicorn.Config(
            make_app(house),
            log_config=None,
            access_log=False,
            server_header=False,
            ssl_certfile=settings.tls_cert if local is None else local.server,
            ssl_keyfile=settings.tls_key,
            proxy_headers=bool(settings.behind_proxy),
            forwarded_allow_ips=list(settings.behind_proxy) or None,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(settings.drain_seconds) + 1,
            ws=cast("Any", partial(Upgrades, house)),
            ws_max_size=FRAME_BYTES,
            ws_per_message_deflate=False,
            http=type("ServedConnection", (Connection,), {"listener": listener}),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        beside = None if metrics is None else MetricsListener(house.observation.metrics, house.hosts, metrics)
        _Server(config, house, listener, started, beside).run(sockets=[listener])
    finally:
        os.close(lock)


class _Server(uvicorn.Server):
    """uvicorn's server, which tells when it has started, and drains requests before it closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        house: House,
        listener: socket.socket,
        started: Callable[[str, Path | None], None],
        metrics: MetricsListener | None = None,
    ) -> None:
        super().__init__(config)
        self._house, self._listener, self._told, self._metrics = house, listener, started, metrics
        self._renewing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take requests, and tell it."""
        await super().startup(sockets)
        if not self.started:
            return
        load()  # what is used for the first time may be used when no descriptor is left to open its file
        _collect_often_and_little()
        key = await first_key(self._house.keys, self._house.settings.data)
        if self._house.settings.tls_local and self.config.ssl is not None:
            self._renewing = asyncio.create_task(keep_renewing(self._house.settings, self.config.ssl))
        scheme = "https" if self._house.settings.is_encrypted else "http"
        host, port = self._listener.getsockname()[:2]
        self._told(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", key)
        if self._metrics is not None:
            self._metrics.begin()
        notify("READY=1")
        if self._house.settings.drain:
            self._waiting = asyncio.create_task(self._end_with_the_last())

    async def _end_with_the_last(self) -> None:
        """End when no sandbox is left."""
        while any(self._house.fleet.count_states()[state] for state in LIVING):  # noqa: ASYNC110  # they end in many ways
            await asyncio.sleep(LOOK_SECONDS)
        log_event(log, logging.INFO, "all sandboxes have ended, and so does the service")
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: no new requests, those under way within the time to drain, streams of events at once."""
        notify("STOPPING=1")
        self._house.draining = True
        for server in self.servers:
            server.close()
        self._house.broadcast.close()
        if self._renewing is not None:
            self._renewing.cancel()
        seconds = self._house.settings.drain_seconds
        await asyncio.gather(self._house.fleet.drain(seconds), self._house.connections.drain(seconds))
        await asyncio.sleep(0)  # those that were answered are written
        await super().shutdown(sockets)
        if self._metrics is not None:
            await self._metrics.close()


def _collect_often_and_little() -> None:
    """Have the collector of garbage hold up requests for no more than a few milliseconds.

    The command ``gamebox`` lets it run every 50,000 objects, which is right for a short command, and a pause of 50 ms here. What
    a service starts with is never garbage: all modules, two thirds of its objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1000, 20, 20)


def _raised_descriptor_limit() -> int:
    """Raise the limit as far as it may be, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def say_started(url: str, key: Path | None, advice: Sequence[str] = ()) -> None:
    """Print the address on standard output, and on standard error how to use it, with more ``advice``."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    lines = [f"gamebox serves at {url}", *advice]
    if key is not None:
        lines += [
            f"The first key is in {key}. Try:",
            f'  curl -H "Authorization: Bearer $(cat {key})" {url}/v1/whoami',
            f'  GAMEBOX_URL={url} GAMEBOX_API_KEY="$(cat {key})" gamebox run uname -a',
        ]
    sys.stderr.write("\n".join(lines) + "\n")


def log_started(url: str, key: Path | None) -> None:
    """Print the address on standard output, and log it: standard error is JSON."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    log_event(log, logging.INFO, "gamebox serves", url=url, first_key_file=None if key is None else str(key))
