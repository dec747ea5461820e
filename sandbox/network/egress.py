"""The way out of a sandbox: every connection that the guest asks for is judged, dialled and relayed here, or refused with words."""

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
from sandbox.network.services.names import Way
from sandbox.pipe import descriptors

from .addresses import is_own, literal
from .allowance import Allowance
from .approval import Questions
from .connections import Connection, ConnectionLog
from .dialling import RefusedError, UnreachableError, dial, route
from .policy import Network, Verdict, judge_address, judge_host
from .relay import Frames, Relay
from .rules import ascii_name, canonical, is_host, rule_for
from .streams import MOST_CONNECTIONS, Streams

log = logging.getLogger(__name__)

# At once, of one sandbox: each takes two descriptors of this process, and ``network_connections`` does not count them.
MOST_TO_SERVICES = 64


class Egress:
    """The connections of one sandbox under a policy, which may be changed at any time; for any thread.

    ``connections`` is told of each one as it ends. ``streams`` are theirs and those of forwarded ports. ``services`` are reached
    under every policy, by their names and ports; what else has such a name is not. ``changing`` is held by whoever reads the policy
    to write another one.
    """

    def __init__(
        self,
        network: Network,
        send: Frames,
        connections: ConnectionLog,
        allowance: Allowance | None = None,
        services: Mapping[tuple[str, int], Way] | None = None,
        changing: threading.RLock | None = None,
    ) -> None:
        self._network = network
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
        # In the loop only: with each the rule that was granted for it alone, "" where it needed none.
        self._standing: dict[int, tuple[Relay, Connection, str]] = {}

    @property
    def network(self) -> Network:
        """The policy, with what was granted for the session."""
        return self._network

    def change(self, network: Network) -> None:
        """Another policy from now on; connections that it refuses are cut."""
        with self._changing:
            self._network = network
            if self.streams.begun:
                self.streams.in_loop(self._cut_refused)

    def _cut_refused(self) -> None:
        for relay, opened, granted in list(self._standing.values()):
            refused = self._refusal_now(opened, granted)
            if refused is not None:
                relay.cut(f"the rules were changed: {refused.why}", refused.kind, refused.about)

    def _refusal_now(self, opened: Connection, granted: str) -> Verdict | None:
        """That a connection is refused by the policy of now; ``granted`` opens it beside that, and lifts no denial."""
        return _refusal(self._network.granted(granted) if granted else self._network, opened)

    def _cut_silent(self, most: float) -> None:
        """Cut what nothing came or went on, and look again when the next one may be due."""
        now = time.monotonic()
        for relay, _, _ in list(self._standing.values()):
            if now - relay.last_active >= most:
                relay.cut(f"nothing came or went for {most:g} second{'' if most == 1 else 's'}", "silent", "network_silent_seconds")
        self._watching = bool(self._standing)
        if self._watching:
            due = min(relay.last_active for relay, _, _ in self._standing.values()) + most
            asyncio.get_running_loop().call_later(max(0.05, due - now), self._cut_silent, most)

    # --- one connection ------------------------------------------------------------------
    async def _serve(self, channel: int, fields: dict[str, Any], full: bool) -> None:
        """From the guest's wish to an open connection, or to the words why not."""
        host, port, started = canonical(str(fields["host"])), int(fields["port"]), time.time()
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
        except Exception as error:  # whatever it was, the client in the sandbox must not wait for ever
            log.exception("a way to %r port %s could not be sought", host, port)
            found = descriptors.shortage(error)
            why = "the host could not look for it: its log says why" if found is None else descriptors.words(found)
            self._decline(channel, Connection(host, port, "failed", why=why, started=started))
        finally:
            self._opening -= 1

    async def _open(self, channel: int, host: str, port: int, started: float, full: bool) -> None:
        """Judge, dial and join. Raises RefusedError, UnreachableError."""
        problem = self.allowance.problem(len(self._standing) + self._opening - 1)
        if (service := None if full else self._service(host, port)) is not None:  # no traffic of the network
            await self._serve_by(service, channel, Connection(host, port, "allowed", rule="service", started=started))
            return
        if problem is not None:
            raise RefusedError(problem[0], "limit", problem[1])
        if full:
            raise RefusedError(f"there are {MOST_CONNECTIONS} connections already, the most there may be", "limit")
        network, granted = await self._approved(host, port)
        way = await route(network, host, port)
        relay, address = await dial(way, host, port, lambda: Relay(channel, self.streams.send, self.allowance))
        opened = Connection(host, port, "allowed", address, way.rule, started=started)
        if (refused := self._refusal_now(opened, granted)) is not None:  # the rules were changed while it was dialled
            relay.abort(refused.why)
            raise RefusedError.of(refused)
        self._standing[channel] = (relay, opened, granted)
        if not self._watching and self.allowance.silent_seconds is not None:
            self._cut_silent(self.allowance.silent_seconds)
        self._begin(relay, opened)

    async def _serve_by(self, service: Way, channel: int, wanted: Connection) -> None:
        """Join with a service. Raises RefusedError, UnreachableError."""
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

    def _service(self, host: str, port: int) -> Way | None:
        """Who serves that name; None for a name of the world. Raises RefusedError for a port that is not served."""
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
        relay.tell = lambda notice: self._tell(channel, opened, notice)
        self.streams.message(Kind.REPLY, channel, {"open": True})
        self.streams.join(relay, lambda why: self._over(relay, opened, why))

    def _tell(self, channel: int, opened: Connection, notice: dict[str, str]) -> None:
        """Have the command of a connection learn this; ahead of what is sent or cut after it."""
        shown = {name: self.connections.shown(text) for name, text in notice.items()}
        fields = {"host": self.connections.shown(opened.host), "port": opened.port, **shown}
        self.streams.message(Kind.NOTICE, channel, fields)

    async def _approved(self, host: str, port: int) -> tuple[Network, str]:
        """The policy for this connection, and the rule that was granted for it alone."""
        network = self._network
        verdict = judge_host(network, host, port)
        # A rule that closes it is an answer.
        if network.ask is None or verdict.allowed or verdict.rule or not is_host(host):
            return network, ""
        answer = await self._questions.answer(
            network.ask, host, port, seconds=network.ask_seconds, most=self.allowance.questions,
            needed=lambda: not judge_host(self._network, host, port).allowed,
        )  # fmt: skip
        if answer is None:
            return self._network, ""
        try:
            rule = rule_for(host, port)
            with self._changing:  # the policy of now: what was denied while the question was open stays so
                if self._network.ask is not network.ask:  # another network since, which nobody was asked about
                    return self._network, ""
                granted = self._network.granted(rule)
                if answer == "session":
                    self._network, rule = granted, ""
        except SandboxError:  # the rules were changed to those of a network that has none
            log.warning("what was granted for %s:%s can be no rule", host, port, exc_info=True)
            return self._network, ""
        return granted, rule

    def _decline(self, channel: int, connection: Connection, **more: str) -> None:
        self.connections.add(connection)  # first: who hears of the refusal finds it in the log
        self.streams.forget(channel)
        shown = self.connections.shown
        fields = {name: shown(text) for name, text in {connection.outcome: connection.why, **more}.items()}
        self.streams.message(Kind.REPLY, channel, fields)

    def _over(self, relay: Relay, opened: Connection, why: str) -> None:
        if self._standing.pop(relay.channel, None) is None:
            self._to_services -= 1
        seconds = time.monotonic() - relay.began
        if relay.refused:  # by the service, which read the request
            why = relay.refused
        if not relay.asked:
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


def _refusal(network: Network, opened: Connection) -> Verdict | None:
    """That ``network`` refuses a connection that stands; None where it does not."""
    verdict = judge_host(network, opened.host, opened.port)
    address = literal(opened.address)
    if verdict.allowed and address is not None:  # None: a company's proxy dialled
        name = None if literal(opened.host) is not None else ascii_name(opened.host)
        verdict = judge_address(network, name, address, opened.port, own=is_own(address))
    return None if verdict.allowed else verdict
