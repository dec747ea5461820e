"""The way out of a sandbox: every connection that the guest asks for is judged, dialled and relayed here, or refused with words."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandbox.guest.wire import Kind

from .connections import Connection, ConnectionLog
from .dialling import RefusedError, UnreachableError, dial, route
from .policy import Network, judge_host
from .relay import Frames, Relay
from .streams import MOST_CONNECTIONS, Streams

log = logging.getLogger(__name__)


class Egress:
    """The connections of one sandbox under ``network``, which may be replaced at any time.

    ``connections`` is told of each one as it ends. ``streams`` are theirs and those of forwarded ports.
    """

    def __init__(self, network: Network, send: Frames, connections: ConnectionLog) -> None:
        self.network = network
        self.connections = connections
        self.streams = Streams(send, self._serve)
        self._asking = threading.Lock()

    async def _serve(self, channel: int, fields: dict[str, Any], full: bool) -> None:
        """From the guest's wish to an open connection, or to the words why not."""
        host, port, started = str(fields["host"])[:1000], int(fields["port"]), time.time()
        try:
            if full:
                raise RefusedError(f"there are {MOST_CONNECTIONS} connections already, the most there may be")
            way = await route(await self._approved(host, port), host, port)
            relay, address = await dial(way, host, port, lambda: Relay(channel, self.streams.send))
        except RefusedError as error:
            self._decline(channel, Connection(host, port, "denied", why=error.why, started=started))
        except UnreachableError as error:
            failed = Connection(host, port, "failed", error.address, error.rule, error.why, started=started)
            self._decline(channel, failed)
        else:
            opened = Connection(host, port, "allowed", address, way.rule, started=started)
            self.streams.message(Kind.REPLY, channel, {"open": True})
            self.streams.join(relay, lambda why: self._over(relay, opened, why))

    async def _approved(self, host: str, port: int) -> Network:
        """The policy for this connection: with a rule of its own where it had to be asked for and was granted."""
        network = self.network
        if network.ask is None or judge_host(network, host, port).allowed:
            return network
        return await asyncio.to_thread(self._ask, network.ask, host, port)

    def _ask(self, ask: Callable[[str, int], str | None], host: str, port: int) -> Network:
        with self._asking:  # one question at a time, and none that was answered meanwhile
            if judge_host(self.network, host, port).allowed:
                return self.network
            try:
                answer = ask(host, port)
            except Exception:
                log.warning("what answers for refused hosts failed on %s:%s", host, port, exc_info=True)
                return self.network
            if answer not in ("once", "session"):
                return self.network
            granted = self.network.with_rules(f"{f'[{host}]' if ':' in host else host}:{port}")
            if answer == "session":
                self.network = granted
            return granted

    def _decline(self, channel: int, connection: Connection) -> None:
        self.streams.forget(channel)
        self.streams.message(Kind.REPLY, channel, {connection.outcome: connection.why})
        self.connections.add(connection)

    def _over(self, relay: Relay, opened: Connection, why: str) -> None:
        self.connections.add(
            replace(
                opened,
                why=why,
                sent_bytes=relay.sent_bytes,
                received_bytes=relay.received_bytes,
                duration_seconds=max(0.0, time.time() - opened.started),
            )
        )
