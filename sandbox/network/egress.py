"""The outgoing connections of a sandbox: each that the guest asks for is judged, dialled and relayed, or refused with a reason."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sandbox.errors import SandboxError
from sandbox.guest.protocol.wire import Kind
from sandbox.limits import Limits
from sandbox.network.services.names import Connector
from sandbox.pipe import descriptors

from .addresses import parse_address
from .allowance import Allowance
from .approval import Questions
from .ceiling import Ceiling
from .connections import Connection, ConnectionLog
from .dialling import RefusedError, UnreachableError, dial, judge_dialled, judge_name, route
from .policy import Network, Verdict, judge_host
from .relay import Frames, Relay
from .rules import ascii_name, canonical_host, is_host, rule_for
from .streams import MOST_CONNECTIONS, Streams

log = logging.getLogger(__name__)

# At once and per sandbox: each takes two descriptors of this process, and ``network_connections`` does not count them.
MOST_TO_SERVICES = 64


class Egress:
    """The connections of one sandbox under a policy that may change at any time. Safe for use by several threads.

    ``connections`` records each one as it ends. ``streams`` carries them and those of forwarded ports. ``services`` are reached
    under every policy by their names and ports, and no other host is reached by such a name. ``changing`` is the lock to hold
    between reading the policy and replacing it. ``ceiling`` bounds every policy.
    """

    def __init__(
        self,
        network: Network,
        send: Frames,
        connections: ConnectionLog,
        allowance: Allowance | None = None,
        services: Mapping[tuple[str, int], Connector] | None = None,
        changing: threading.RLock | None = None,
        ceiling: Ceiling | None = None,
    ) -> None:
        self._network, self._ceiling = network, ceiling
        self._changing = changing or threading.RLock()
        self._services = services or {}
        self.connections = connections
        self.streams = Streams(send, self._serve)
        self.allowance = allowance or Allowance(Limits())
        self._opening = 0
        self._to_services = 0
        self._watching = False
        self._questions = Questions()
        self.streams.at_end.append(self._questions.close)
        # In the loop only. The last item is the rule that was granted for this connection alone, or "".
        self._open_connections: dict[int, tuple[Relay, Connection, str]] = {}

    @property
    def network(self) -> Network:
        """The policy, including the rules granted for the session."""
        return self._network

    def change(self, network: Network) -> None:
        """Replace the policy and cut the connections that the new one refuses."""
        with self._changing:
            self._network = network
            if self.streams.begun:
                self.streams.in_loop(self._cut_refused)

    def lower(self, ceiling: Ceiling | None) -> None:
        """Replace the ceiling and cut the connections that the new one refuses."""
        with self._changing:
            self._ceiling = ceiling
            self.change(self._network)

    def _cut_refused(self) -> None:
        for relay, opened, granted in list(self._open_connections.values()):
            refused = self._refusal_now(opened, granted)
            if refused is not None:
                relay.cut(f"the rules were changed: {refused.why}", refused.kind, refused.about)

    def _refusal_now(self, opened: Connection, granted: str) -> Verdict | None:
        """Return why the present policy with the rule ``granted`` refuses a connection, or None. A grant lifts no denial."""
        return _refusal(self._network.granted(granted) if granted else self._network, opened, self._ceiling)

    def _cut_silent(self, most: float) -> None:
        """Cut connections that were silent for ``most`` seconds, and look again when the next may be due."""
        now = time.monotonic()
        for relay, _, _ in list(self._open_connections.values()):
            if now - relay.last_active >= most:
                relay.cut(
                    f"nothing came or went for {most:g} second{'' if most == 1 else 's'}",
                    "silent",
                    "network_silent_seconds",
                )
        self._watching = bool(self._open_connections)
        if self._watching:
            due = min(relay.last_active for relay, _, _ in self._open_connections.values()) + most
            asyncio.get_running_loop().call_later(max(0.05, due - now), self._cut_silent, most)

    async def _serve(self, channel: int, fields: dict[str, Any], full: bool) -> None:
        """Open the connection that the guest asks for, or answer why not."""
        host, port, started = canonical_host(str(fields["host"])), int(fields["port"]), time.time()
        self._opening += 1
        try:
            await self._open(channel, host, port, started, full)
        except RefusedError as error:
            denied = Connection(host, port, "denied", why=error.why, started=started)
            self._decline(channel, denied, kind=error.kind, about=error.about)
        except UnreachableError as error:
            failed = Connection(host, port, "failed", error.address, error.rule, error.why, started=started)
            self._decline(channel, failed)
        except asyncio.CancelledError:
            self.connections.add(Connection(host, port, "failed", why="it was cut before it stood", started=started))
            self.streams.forget(channel)
            raise
        except Exception as error:  # whatever it is, the client in the sandbox must not wait for ever
            log.exception("the connection to %r port %s failed on the host", host, port)
            found = descriptors.shortage(error)
            why = "the host could not look for it: its log says why" if found is None else descriptors.words(found)
            self._decline(channel, Connection(host, port, "failed", why=why, started=started))
        finally:
            self._opening -= 1

    async def _open(self, channel: int, host: str, port: int, started: float, full: bool) -> None:
        """Judge, dial and join. Raises RefusedError, UnreachableError."""
        problem = self.allowance.problem(len(self._open_connections) + self._opening - 1)
        if (service := None if full else self._service(host, port)) is not None:  # not traffic of the network
            await self._connect_service(
                service, channel, Connection(host, port, "allowed", rule="service", started=started)
            )
            return
        if problem is not None:
            raise RefusedError(problem[0], "limit", problem[1])
        if full:
            raise RefusedError(f"there are {MOST_CONNECTIONS} connections already, the most there may be", "limit")
        network, granted = await self._ask_owner(host, port)
        way = await route(network, host, port, self._ceiling)
        relay, address = await dial(way, host, port, lambda: Relay(channel, self.streams.send, self.allowance))
        opened = Connection(host, port, "allowed", address, way.rule, started=started)
        if (refused := self._refusal_now(opened, granted)) is not None:  # the rules were changed while it was dialled
            relay.abort(refused.why)
            raise RefusedError.of(refused)
        self._open_connections[channel] = (relay, opened, granted)
        if not self._watching and self.allowance.silent_seconds is not None:
            self._cut_silent(self.allowance.silent_seconds)
        self._begin(relay, opened)

    async def _connect_service(self, service: Connector, channel: int, wanted: Connection) -> None:
        """Connect to a service. Raises RefusedError, UnreachableError."""
        if self._to_services >= MOST_TO_SERVICES:
            raise UnreachableError(
                f"there are {self._to_services} connections to services already, the most there may be"
            )
        self._to_services += 1
        try:
            relay, address = await service(lambda: Relay(channel, self.streams.send))
        except BaseException:
            self._to_services -= 1
            raise
        self._begin(relay, replace(wanted, address=address))

    def _service(self, host: str, port: int) -> Connector | None:
        """Return the connector of the service with that name, or None. Raises RefusedError for a port that it does not serve."""
        name = ascii_name(host)
        ports = [number for known, number in self._services if known == name]
        if name is None or not ports:
            return None
        if port not in ports:
            served = ", ".join(map(str, sorted(ports)))
            why = f"{name} is a service of this sandbox, and serves port {served} only"
            raise RefusedError(why, "service_port", served)
        return self._services[name, port]

    def _begin(self, relay: Relay, opened: Connection) -> None:
        channel = relay.channel
        relay.notify = lambda notice: self._notify(channel, opened, notice)
        self.streams.message(Kind.REPLY, channel, {"open": True})
        self.streams.join(relay, lambda why: self._ended(relay, opened, why))

    def _notify(self, channel: int, opened: Connection, notice: dict[str, str]) -> None:
        """Send a notice to the command behind a connection, ahead of later data or a cut."""
        masked = {name: self.connections.masked(text) for name, text in notice.items()}
        fields = {"host": self.connections.masked(opened.host), "port": opened.port, **masked}
        self.streams.message(Kind.NOTICE, channel, fields)

    async def _ask_owner(self, host: str, port: int) -> tuple[Network, str]:
        """Return the policy for this connection, after asking the owner if need be, and the rule granted for it alone."""
        network = self._network
        verdict = judge_host(network, host, port)
        # A rule that closes it needs no question.
        if network.ask is None or verdict.allowed or verdict.rule or not is_host(host):
            return network, ""
        answer = await self._questions.answer(
            network.ask,
            host,
            port,
            seconds=network.ask_seconds,
            most=self.allowance.questions,
            needed=lambda: not judge_host(self._network, host, port).allowed,
        )
        if answer is None:
            return self._network, ""
        try:
            rule = rule_for(host, port)
            with self._changing:  # the present policy: a denial since the question was asked holds
                if self._network.ask is not network.ask:  # replaced meanwhile, and the new policy was not asked
                    return self._network, ""
                granted = self._network.granted(rule)
                if answer == "session":
                    self._network, rule = granted, ""
        except SandboxError:  # replaced by a policy that takes no rules
            log.warning("the grant for %s:%s cannot become a rule", host, port, exc_info=True)
            return self._network, ""
        return granted, rule

    def _decline(self, channel: int, connection: Connection, **more: str) -> None:
        self.connections.add(connection)  # first: a reader of the refusal must find it in the log
        self.streams.forget(channel)
        masked = self.connections.masked
        fields = {name: masked(text) for name, text in {connection.outcome: connection.why, **more}.items()}
        self.streams.message(Kind.REPLY, channel, fields)

    def _ended(self, relay: Relay, opened: Connection, why: str) -> None:
        if self._open_connections.pop(relay.channel, None) is None:
            self._to_services -= 1
        seconds = time.monotonic() - relay.began
        if relay.refusal:  # by the service, after reading the request
            why = relay.refusal
        if not relay.reached_upstream:
            opened = replace(opened, outcome="denied", address="")
        self.connections.add(
            replace(
                opened,
                why=why,
                sent_bytes=relay.sent_bytes,
                received_bytes=relay.received_bytes,
                duration_seconds=seconds,
            )
        )


def _refusal(network: Network, opened: Connection, ceiling: Ceiling | None) -> Verdict | None:
    """Return the verdict by which ``network`` or the ceiling refuses an open connection, or None."""
    verdict = judge_name(network, opened.host, opened.port, ceiling)
    address = parse_address(opened.address)
    if verdict.allowed and address is not None:  # None: a proxy dialled
        name = None if parse_address(opened.host) is not None else ascii_name(opened.host)
        verdict = judge_dialled(network, name, address, opened.port, ceiling)
    return None if verdict.allowed else verdict
