"""An environment whose servers can be reached from the host, with or without a network of its own."""

from __future__ import annotations

import time

from sandbox.envelope import Envelope, Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.forward import Forward
from sandbox.network.ports import check_port

from .networked import NetworkedEnvironment

MOST_FORWARDS = 64


class ForwardingEnvironment(NetworkedEnvironment):
    """Opens ports of the host's loopback that lead to servers in the sandbox."""

    _forwards: tuple[Forward, ...] = ()

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
            made = self._opened(port, host_port)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        return Success(made, duration_ms=(time.monotonic() - started) * 1000)

    def forwards(self) -> tuple[Forward, ...]:
        """The forwarded ports that are open."""
        self._forwards = tuple(each for each in self._forwards if not each.closed)
        return self._forwards

    def _opened(self, port: int, host_port: int) -> Forward:
        for name, value, least in (("port", port, 1), ("host_port", host_port, 0)):
            check_port("forward", name, value, least)
        transport = self._live()
        if self._egress is None:
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{type(self).__name__} has no servers that could be reached.",
                "Use DockerEnvironment or LocalEnvironment.",
            )
        if len(self.forwards()) >= MOST_FORWARDS:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"{MOST_FORWARDS} ports are forwarded already.",
                "Close one that is not needed: env.forwards()[0].close().",
            )
        made = Forward(self._egress.streams, transport.new_channel, port)
        made.open(host_port)
        self._forwards = (*self._forwards, made)
        return made
