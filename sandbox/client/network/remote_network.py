"""The network of a remote environment: rules are the service's to keep, ports lead here through it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from sandbox.docker.spec import SandboxSpec
from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.parts.network import check_network, check_ports
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.connections import Connection
from sandbox.network.policy import Network

from .connections import Connections, Listener
from .tunnels import RemoteForward, Tunnels


class RemoteNetwork(ABC):
    """The methods of ``SandboxedEnvironment`` on the network."""

    _policy: Network
    # Held while the policy is read and replaced, so that no change is lost.
    _changing: threading.RLock
    _tunnels: Tunnels
    _connections: Connections

    @abstractmethod
    def _change_network(self, network: Network) -> None:
        """Have the service keep these rules, or those of a sandbox that is not started. Raises SandboxError."""

    @property
    def network(self) -> Network:
        """The current policy; set another, or use ``allow`` and ``deny``, also while the sandbox runs. Raises SandboxError."""
        return self._policy

    @network.setter
    def network(self, network: Network) -> None:
        check_network(network)
        with self._changing:
            self._change_network(network)
            self._policy = network

    def allow(self, *rules: str) -> Network:
        """See ``SandboxedEnvironment.allow``."""
        with self._changing:
            self.network = changed = self._policy.with_rules(*rules)
        return changed

    def deny(self, *rules: str) -> Network:
        """See ``SandboxedEnvironment.deny``."""
        with self._changing:
            self.network = changed = self._policy.without(*rules)
        return changed

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last 1,000 connections, as the service has them now; it forgets them when it is restarted. () if it has none."""
        return self._connections.last()

    @property
    def on_connection(self) -> Listener | None:
        """Called for each connection as it ends or is refused, in a thread of its own, about half a second later.

        Setting a function asks the service of a started sandbox which connections there were before; setting None, and ``close``,
        pass on what has ended since the last call. What ends shortly before the service is restarted is lost.
        """
        return self._connections.listener

    @on_connection.setter
    def on_connection(self, call: Listener | None) -> None:
        self._connections.listen(call)

    def forward(self, port: int, host_port: int = 0) -> Envelope[RemoteForward]:
        """See ``SandboxedEnvironment.forward``. Each connection goes through the service; this needs the extra ``remote``."""
        started = time.monotonic()
        try:
            check_ports(port, host_port)
            made = self._tunnels.open(port, host_port)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        return Success(made, duration_ms=(time.monotonic() - started) * 1000)

    def forwards(self) -> tuple[RemoteForward, ...]:
        """See ``SandboxedEnvironment.forwards``."""
        return self._tunnels.forwards()


def network_data(network: Network) -> Any:
    """Return the rules as a service takes them."""
    return SandboxSpec(network=network).to_data().get("network", {"mode": "none"})

