"""The network of one sandbox, seen from the host: its policy, its connections, and the ports that lead into it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.envelope import Envelope, Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.guest.protocol.wire import Kind, pack_message
from sandbox.interrupts import Shield
from sandbox.limits import Limits
from sandbox.network.allowance import Allowance
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.policy import Network
from sandbox.network.ports import check_port
from sandbox.pipe import descriptors
from sandbox.pipe import forked_processes as forks

if TYPE_CHECKING:  # some of them need asyncio, which takes 12 ms to load
    from sandbox.network.ceiling import Ceiling
    from sandbox.network.egress import Egress
    from sandbox.network.forward import Forward
    from sandbox.network.services.names import Connector
    from sandbox.network.services.peer_port import PeerPort
    from sandbox.network.streams import Streams
    from sandbox.pipe.transport import Transport

MOST_FORWARDS = 64


class SandboxNetwork:
    """Holds the policy, and the host's end of the connections while the sandbox runs. May be used by many threads.

    ``owner`` names the environment in errors; ``no_rules`` says why rules cannot hold there ("" if they do). Raises SandboxError
    ``invalid_configuration`` for a ``policy`` that is not a Network.
    """

    def __init__(
        self, owner: str, policy: Network, limits: Limits, masked: Callable[[str], str], pid: int, no_rules: str = ""
    ) -> None:
        self._owner, self._limits, self._pid, self._no_rules = owner, limits, pid, no_rules
        # Called for each connection as it ends or is refused, in a thread of the network's own; it must not block.
        self.on_connection: Callable[[Connection], None] | None = None
        self._policy = check_network(policy)
        # Held while a policy is read and replaced, so that no change is lost; the egress has the same lock.
        self._changing = threading.RLock()
        self._allowance = Allowance(limits)
        self.log = ConnectionLog(self._connected, masked)
        self._make_egress: Callable[[], Egress] | None = None  # while the sandbox runs
        self._egress: Egress | None = None
        self._forwards: tuple[Forward, ...] = ()
        self._ceiling: Ceiling | None = None

    # Policy

    @property
    def policy(self) -> Network:
        """The present policy."""
        egress = self._egress
        return self._policy if egress is None or self._policy.mode == "bridge" else egress.network

    def change(self, policy: Network) -> None:
        """Set another policy, also while the sandbox runs; see ``SandboxedEnvironment.network``."""
        self._check_rules()
        check_network(policy)
        with self._changing:
            if self._ceiling is not None:
                self._ceiling.check(policy)
            self._set(policy)

    def _set(self, policy: Network) -> None:
        with self._changing:
            if self._make_egress is not None and "bridge" in (policy.mode, self._policy.mode) and policy != self._policy:
                raise SandboxError(
                    ErrorCode.invalid_configuration,
                    f"The network cannot become {policy.mode!r} while the sandbox runs: its interfaces are those of "
                    f"{self._policy.mode!r}.",
                    "Start another sandbox with it.",
                )
            self._policy = policy
            if self._egress is not None and policy.mode != "bridge":
                self._egress.change(policy)

    @property
    def ceiling(self) -> Ceiling | None:
        """What bounds every policy; see ``SandboxedEnvironment.ceiling``."""
        return self._ceiling

    def lower(self, ceiling: Ceiling | None) -> None:
        """Set another ceiling, also while the sandbox runs. Raises SandboxError."""
        self._check_rules()
        with self._changing:
            if ceiling is not None and self._policy.mode == "bridge":
                ceiling.check(self._policy)
            self._ceiling = ceiling
            if self._egress is not None:
                self._egress.lower(ceiling)

    def allow(self, *rules: str) -> Network:
        """Open what the rules name; return the policy."""
        self._check_rules()
        with self._changing:
            changed = self.policy.with_rules(*rules)
            self.change(changed)
        return changed

    def deny(self, *rules: str) -> Network:
        """Close what the rules name; return the policy."""
        self._check_rules()
        with self._changing:
            changed = self.policy.without(*rules)
            self._set(changed)  # what is left may be more than a ceiling that came later allows
        return changed

    def _check_rules(self) -> None:
        forks.check(self._pid)
        if self._no_rules:
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{self._owner} cannot restrict the network: {self._no_rules}",
                "Use DockerEnvironment(network=...), where rules hold.",
            )

    # Connections

    def carry(
        self,
        transport: Transport,
        connectors: Mapping[tuple[str, int], Connector],
        on_making: Callable[[Streams], None],
    ) -> None:
        """Let connections of the sandbox use ``transport``, before that opens; ``connectors`` lead to services under any rules.

        What connections need is made with the first one, and given to ``on_making``.
        """

        def make() -> Egress:
            with descriptors.worded("No connection of the sandbox can be served"):  # asyncio may have to be loaded
                from sandbox.network.egress import Egress

            # On a bridge the guest asks for none; one that does all the same gets none.
            policy = Network.none() if self._policy.mode == "bridge" else self._policy
            made = Egress(
                policy, transport.flow, self.log, self._allowance, connectors, self._changing, self._ceiling
            )
            on_making(made.streams)
            transport.carry(made.streams)
            return made

        self._make_egress = make
        transport.carry(_NoConnections(self, transport))

    def egress(self) -> Egress | None:
        """Return the host's end of the connections, None if the sandbox does not run.

        Raises SandboxError ``host_descriptor_limit`` if it cannot be made.
        """
        with Shield(), self._changing:  # a Ctrl-C must not lose what was made
            if self._egress is None and self._make_egress is not None:
                self._egress = self._make_egress()
            return self._egress

    @property
    def streams(self) -> Streams | None:
        """The connections, if there ever were any."""
        egress = self._egress
        return None if egress is None else egress.streams

    def end(self) -> None:
        """Cut every connection. May be called more than once."""
        with self._changing:
            self._make_egress = None
        ended = self._egress
        if ended is not None:
            ended.streams.close()
        with self._changing:  # afterwards: a Ctrl-C must not lose what is to be closed
            self._policy, self._egress = self.policy, None

    def peer_port(self, transport: Transport | None, port: int) -> PeerPort | None:
        """Return the way of another sandbox on this host to a port of this one; None if this one is closed."""
        from sandbox.network.services.peer_port import PeerPort

        egress = self.egress()
        return None if egress is None or transport is None else PeerPort(egress.streams, transport.new_channel, port)

    def usage(self) -> dict[str, Any]:
        """Return the fields of ``usage`` that this host counts."""
        return {
            "network_sent_bytes": self._allowance.sent_bytes,
            "network_received_bytes": self._allowance.received_bytes,
            "network_limit_bytes": self._limits.network_bytes,
            "connections": self.log.count,
        }

    def _connected(self, connection: Connection) -> None:
        if self.on_connection is not None:
            self.on_connection(connection)

    # Ports of the sandbox on the host

    def forward(self, transport: Transport, port: int, host_port: int) -> Forward:
        """Open a port of the host's loopback that leads to ``port`` of the sandbox's. Raises SandboxError."""
        egress = self.egress()
        if egress is None:
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{self._owner} has no servers that could be reached.",
                "Use DockerEnvironment or LocalEnvironment.",
            )
        if len(self.forwards()) >= MOST_FORWARDS:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"{MOST_FORWARDS} ports are forwarded already.",
                "Close one that is not needed: env.forwards()[0].close().",
            )
        from sandbox.network.forward import Forward

        made = Forward(egress.streams, transport.new_channel, port)
        made.open(host_port)
        self._forwards = (*self._forwards, made)
        return made

    def forwards(self) -> tuple[Forward, ...]:
        """Return the forwarded ports that are open."""
        self._forwards = tuple(each for each in self._forwards if not each.closed)
        return self._forwards


class _NoConnections:
    """Implements ``Connections`` until the guest asks for the first one: most sandboxes never do."""

    def __init__(self, network: SandboxNetwork, transport: Transport) -> None:
        self._network, self._transport = network, transport

    def takes(self, channel: int) -> bool:  # noqa: ARG002
        """See ``Connections``. No channel belongs to a connection yet."""
        return False

    def take(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        """Have the first connection served. If it cannot be, it fails, and the sandbox goes on."""
        try:
            egress = self._network.egress()
        except SandboxError as error:
            # Without waiting for room: this is the thread that reads the pipe.
            self._transport.try_send(Kind.REPLY, channel, pack_message({"failed": error.message.rstrip(".")}), wait_seconds=0)
            return
        if egress is not None:
            egress.streams.take(kind, channel, payload)

    def cut(self, why: str) -> None:
        """See ``Connections``. There is nothing to end yet."""


class NetworkMethods(ABC):
    """The methods of ``SandboxedEnvironment`` on its network."""

    _network: SandboxNetwork
    _transport: Transport | None

    @abstractmethod
    def _live(self) -> Transport:
        """Return the transport of a sandbox that is in use. Raises SandboxError."""

    @property
    def network(self) -> Network:
        """The current policy; set another, or use ``allow`` and ``deny``, also while the sandbox runs.

        Connections that a new policy refuses are cut. Setting raises SandboxError: ``operation_not_supported`` where no rule
        holds, ``invalid_configuration`` for a change from or to ``Network.bridge()`` of a sandbox that was started.
        """
        return self._network.policy

    @network.setter
    def network(self, network: Network) -> None:
        self._network.change(network)

    @property
    def ceiling(self) -> Ceiling | None:
        """What no policy of this sandbox opens; None, the default, bounds nothing.

        It is for a program that takes rules from people it does not trust, as a service does. Set it before the start, or at any
        time: each connection is judged by it, those that stand are cut if it refuses them, and a policy that names what it closes
        is refused with CeilingError. Forks have it, too. Raises CeilingError with ``Network.bridge()``, on which nothing can hold.
        """
        return self._network.ceiling

    @ceiling.setter
    def ceiling(self, ceiling: Ceiling | None) -> None:
        self._network.lower(ceiling)

    def allow(self, *rules: str) -> Network:
        """Open what the rules name from now on, and return the policy. See ``Network.allow`` for how they are written.

        Raises SandboxError: ``invalid_configuration`` for an invalid rule, ``operation_not_supported`` if no rule can be enforced.
        """
        return self._network.allow(*rules)

    def deny(self, *rules: str) -> Network:
        """Close what the rules name from now on, whatever opens it; cut the connections to it, and return the policy.

        Without ports a rule closes all of them. Raises as ``allow`` does.
        """
        return self._network.deny(*rules)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last 1,000 connections that ended or were refused; those under ``Network.bridge()`` are not seen."""
        return self._network.log.last()

    @property
    def connection_count(self) -> int:
        """How many connections have ended or were refused; ``connections`` has the last 1,000 of them."""
        return self._network.log.count

    @property
    def on_connection(self) -> Callable[[Connection], None] | None:
        """Called for each connection as it ends or is refused, in a thread of the network's own; it must not block."""
        return self._network.on_connection

    @on_connection.setter
    def on_connection(self, call: Callable[[Connection], None] | None) -> None:
        self._network.on_connection = call

    def peer_port(self, port: int) -> PeerPort | None:
        """Return how another sandbox on this host reaches a port of this one; None if this one is closed."""
        return self._network.peer_port(self._transport, port)

    def forward(self, port: int, host_port: int = 0) -> Envelope[Forward]:
        """Let programs on the host reach the server at TCP ``port`` of the sandbox's loopback, at a loopback port of the host.

        The result has ``url``, ``host``, ``port`` and ``close()``. ``host_port`` 0 takes a free one. It needs no network, carries
        whatever goes over TCP, WebSockets too, and is closed with the sandbox. The server need not be there yet: see
        ``wait_for_port``.
        Any user of the host can connect. Failures: ``invalid_arguments``, ``invalid_configuration`` (the host's port is taken),
        ``operation_not_supported``.
        """
        started = time.monotonic()
        try:
            check_ports(port, host_port)
            made = self._network.forward(self._live(), port, host_port)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        return Success(made, duration_ms=(time.monotonic() - started) * 1000)

    def forwards(self) -> tuple[Forward, ...]:
        """Return the forwarded ports that are open."""
        return self._network.forwards()


def check_network(network: Network) -> Network:
    """Return ``network``. Raises SandboxError ``invalid_configuration`` for what is not a Network."""
    if not isinstance(network, Network):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{network!r:.100} is not a Network.",
            'Give Network.none(), Network.open() or Network.allow("example.com").',
        )
    return network


def check_ports(port: int, host_port: int) -> None:
    """Raise SandboxError ``invalid_arguments`` for numbers that are not ports; 0 is a free port of the host."""
    for name, value, least in (("port", port, 1), ("host_port", host_port, 0)):
        check_port("forward", name, value, least)
