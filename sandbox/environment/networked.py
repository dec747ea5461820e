"""An environment whose sandbox has a network policy: read, changed while it runs, and what it led to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.network.allowance import Allowance
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.egress import Egress
from sandbox.network.policy import Network
from sandbox.network.services.names import Connector
from sandbox.network.services.peer_port import PeerPort
from sandbox.pipe import forked_processes as forks
from sandbox.pipe.transport import Transport

from .base import Approver
from .pausing import PausableEnvironment


class NetworkedEnvironment(PausableEnvironment):
    """Holds the policy of a sandbox, and the host's end of its connections while it runs."""

    # Why rules cannot hold here; "" where they do.
    _no_rules = ""

    def __init__(self, approver: Approver | None, network: Network, limits: Limits) -> None:
        super().__init__(approver)
        self.limits = limits
        # Told of each connection as it ends or is refused, in a thread of the network's own; it must not block.
        self.on_connection: Callable[[Connection], None] | None = None
        self._network = _checked(network)
        # Held by who reads the policy to write another one, so that no change is lost: the egress has the same one.
        self._changing = threading.RLock()
        self._allowance = Allowance(limits)
        self._connection_log = ConnectionLog(self._connected, lambda text: self.hidden.mask.names(text))
        self._egress: Egress | None = None

    @property
    def network(self) -> Network:
        """The policy of now; set another, or use ``allow`` and ``deny``, also while the sandbox runs.

        Connections that a new policy refuses are cut. Setting raises SandboxError: ``operation_not_supported`` where no rule
        holds, ``invalid_configuration`` for a change from or to ``Network.bridge()`` of a sandbox that was started.
        """
        egress = self._egress
        return self._network if egress is None or self._network.mode == "bridge" else egress.network

    @network.setter
    def network(self, network: Network) -> None:
        self._check_rules()
        _checked(network)
        with self._changing:
            if self._egress is not None and "bridge" in (network.mode, self._network.mode) and network != self._network:
                raise SandboxError(
                    ErrorCode.invalid_configuration,
                    f"The network cannot become {network.mode!r} while the sandbox runs: its interfaces are those of "
                    f"{self._network.mode!r}.",
                    "Start another sandbox with it.",
                )
            self._network = network
            if self._egress is not None and network.mode != "bridge":
                self._egress.change(network)

    def allow(self, *rules: str) -> Network:
        """Open what the rules name from now on; answers the policy. See ``Network.allow`` for how they are written.

        Raises SandboxError: ``invalid_configuration`` for what is no rule, ``operation_not_supported`` where none holds.
        """
        self._check_rules()
        with self._changing:
            self.network = changed = self.network.with_rules(*rules)
        return changed

    def deny(self, *rules: str) -> Network:
        """Close what the rules name from now on, whatever opens it, and cut the connections to it; answers the policy.

        Without ports a rule closes all of them. Raises as ``allow`` does.
        """
        self._check_rules()
        with self._changing:
            self.network = changed = self.network.without(*rules)
        return changed

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last 1,000 connections that ended or were refused; those under ``Network.bridge()`` are not seen."""
        return self._connection_log.last()

    def peer_port(self, port: int) -> PeerPort | None:
        """How another sandbox on this host reaches a port of this one; None where this one is closed."""
        egress, transport = self._egress, self._transport
        return None if egress is None or transport is None else PeerPort(egress.streams, transport.new_channel, port)

    def _connectors(self) -> Mapping[tuple[str, int], Connector]:
        """Services that the sandbox reaches by name and port, whatever its rules are."""
        return {}

    def _connected(self, connection: Connection) -> None:
        if self.on_connection is not None:
            self.on_connection(connection)

    def _network_usage(self) -> dict[str, Any]:
        """The fields of ``usage`` that this host counts."""
        allowance = self._allowance
        return {
            "network_sent_bytes": allowance.sent_bytes, "network_received_bytes": allowance.received_bytes,
            "network_limit_bytes": self.limits.network_bytes, "connections": self._connection_log.count,
        }  # fmt: skip

    def _check_rules(self) -> None:
        forks.check(self._pid)
        if self._no_rules:
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{type(self).__name__} cannot restrict the network: {self._no_rules}",
                "Use DockerEnvironment(network=...), where rules hold.",
            )

    def _carrying(self, transport: Transport) -> Transport:
        """``transport`` with the sandbox's connections on it; before it is opened."""
        # On a bridge the guest asks for none; one that does all the same gets none.
        ways = self._connectors()
        with self._changing:
            network = Network.none() if self._network.mode == "bridge" else self._network
            self._egress = Egress(network, transport.flow, self._connection_log, self._allowance, ways, self._changing)
        transport.carry(self._egress.streams)
        return transport

    def _end_network(self) -> None:
        """Cut every connection; may be called more than once."""
        ended = self._egress
        if ended is not None:
            ended.streams.close()
        with self._changing:  # afterwards: a Ctrl-C must not lose what is to be closed
            self._network, self._egress = self.network, None


def _checked(network: Network) -> Network:
    """``network``. Raises SandboxError ``invalid_configuration`` for what is none."""
    if not isinstance(network, Network):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{network!r:.100} is no network.",
            'Give Network.none(), Network.open() or Network.allow("example.com").',
        )
    return network
