"""Side services: a server beside a sandbox, in its own sandbox, and how to tell that it is ready. Values only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from sandbox.argument_types import check_types
from sandbox.errors import configuration_error
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.network.ports import is_port
from sandbox.text.wording import value_text

READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """How to tell that a service is ready: at most one of these checks, made inside its own sandbox.

    ``log``: a line of its output matches this regular expression. ``command``: this shell text exits with 0. ``http``: this path
    (or ``":8080/path"``, for a port other than the first) is answered with a status below 500. Without any of them the service is
    ready when its first port is open. It has ``timeout_seconds`` to become ready.
    """

    log: str | None = None
    command: str | None = None
    http: str | None = None
    timeout_seconds: float = READY_SECONDS

    def __post_init__(self) -> None:
        check_types(
            "Ready",
            log=(self.log, str | None),
            command=(self.command, str | None),
            http=(self.http, str | None),
            timeout_seconds=(self.timeout_seconds, int | float),
        )
        given = [name for name in ("log", "command", "http") if getattr(self, name) is not None]
        if len(given) > 1:
            raise configuration_error(f"Ready was given {' and '.join(given)}.", "Give one of them.")
        if not 0 < self.timeout_seconds < math.inf:  # JSON, in which a spec is written down, has no infinity
            raise configuration_error(
                f"timeout_seconds of Ready is {value_text(self.timeout_seconds)}.", "Give a positive number of seconds."
            )
        if self.http is not None and not self.http.startswith(("/", ":")):
            raise configuration_error(f"{self.http!r} is not a path.", "Write it as in '/health' or ':8080/health'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideService:
    """A server in a sandbox of its own: ``DockerEnvironment(services={"db": SideService(image="postgres", port=5432)})``.

    ``image`` must be on the engine. Its own ENTRYPOINT and CMD run in its WORKDIR, or ``command`` in place of both (shell text, or
    a program and its arguments). They run as ``user``, a name or number that the image knows; the default is its USER. ``env`` adds
    to the image's variables. ``port`` or ``ports`` can be reached by the name of the service, which may listen on any address of
    its sandbox. ``limits`` are those of its own sandbox. It lives as long as the sandbox that it belongs to, whatever
    ``lifetime_seconds`` and ``idle_seconds`` say. Raises SandboxError ``invalid_configuration``.
    """

    image: str
    command: str | Sequence[str] | None = None
    port: int | None = None
    ports: Sequence[int] = ()
    ready: Ready = field(default_factory=Ready)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str | None = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        check_types(
            "SideService",
            image=(self.image, str),
            command=(self.command, str | Sequence | None),
            env=(self.env, Mapping | None),
            limits=(self.limits, Limits | None),
            ready=(self.ready, Ready),
        )
        if self.command is not None and not self.command:
            raise configuration_error("The command of a service is empty.", "Leave it out for the image's own.")
        self._check_ports()
        if not self.all_ports:
            raise configuration_error("A service has no port.", "Give the port it listens on, as in port=5432.")

    def _check_ports(self) -> None:
        ports: object = self.ports
        if isinstance(ports, str | bytes) or not isinstance(ports, Sequence):
            raise configuration_error(
                f"ports of a service is {ports!r:.80}, which is not a list.", "Give it as in ports=[5432, 8080]."
            )
        given = [("port", self.port)] if self.port is not None else []
        for name, value in given + [("ports", each) for each in ports]:
            if not is_port(value):
                raise configuration_error(
                    f"{name} of a service has {value!r:.80}, which is not a port.",
                    "Give a number from 1 to 65535, as in port=5432.",
                )

    @property
    def all_ports(self) -> tuple[int, ...]:
        """``port`` and ``ports`` in this order, without duplicates."""
        return tuple(dict.fromkeys((*(() if self.port is None else (self.port,)), *self.ports)))
