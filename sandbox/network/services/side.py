"""Side services: what runs beside a sandbox, in a sandbox of its own, and how it is known to be ready. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sandbox.argument_types import check_types
from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.network.ports import is_port
from sandbox.text.wording import value_text

READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """How a service is known to be ready: at most one of these, each looked for inside its own sandbox.

    ``log`` is a regular expression that a line of its output matches, ``command`` shell text that exits with 0, ``http`` a path (or
    ``":8080/path"``, for a port that is not the first) that is answered with a status below 500. With none of them it is ready when
    its first port is open. ``timeout_seconds`` is how long that may take.
    """

    log: str | None = None
    command: str | None = None
    http: str | None = None
    timeout_seconds: float = READY_SECONDS

    def __post_init__(self) -> None:
        check_types(
            "Ready", log=(self.log, str | None), command=(self.command, str | None), http=(self.http, str | None),
            timeout_seconds=(self.timeout_seconds, int | float),
        )  # fmt: skip
        given = [name for name in ("log", "command", "http") if getattr(self, name) is not None]
        if len(given) > 1:
            raise _refused(f"Ready was given {' and '.join(given)}.", "Give one of them.")
        if not self.timeout_seconds > 0:
            raise _refused(
                f"timeout_seconds of Ready is {value_text(self.timeout_seconds)}.", "Give a positive number of seconds."
            )
        if self.http is not None and not self.http.startswith(("/", ":")):
            raise _refused(f"{self.http!r} is no path.", "Write it as in '/health' or ':8080/health'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideService:
    """A server in a sandbox of its own: ``DockerEnvironment(services={"db": SideService(image="postgres", port=5432)})``.

    ``image`` must be on the engine. What runs is the image's own ENTRYPOINT and CMD, or ``command`` in place of both (shell text,
    or a program and its arguments), in the image's WORKDIR. ``user`` is who it runs as: a name or number that the image knows, by
    default its USER. ``env`` are variables beside the image's own. ``port`` or ``ports`` are those that can be reached by the name
    of the service; it may listen on any address of its sandbox. ``limits`` are of its own sandbox; it lives as long as the one it
    stands beside, whatever their ``lifetime_seconds`` and ``idle_seconds`` say. Raises SandboxError ``invalid_configuration``.
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
            "SideService", image=(self.image, str), command=(self.command, str | Sequence | None), env=(self.env, Mapping | None),
            limits=(self.limits, Limits | None), ready=(self.ready, Ready),
        )  # fmt: skip
        if self.command is not None and not self.command:
            raise _refused("The command of a service is empty.", "Leave it out for the image's own.")
        self._check_ports()
        if not self.all_ports:
            raise _refused("A service has no port.", "Give the port it listens on, as in port=5432.")

    def _check_ports(self) -> None:
        ports: object = self.ports
        if isinstance(ports, str | bytes) or not isinstance(ports, Sequence):
            raise _refused(f"ports of a service is {ports!r:.80}, which is no list.", "Give it as in ports=[5432, 8080].")
        given = [("port", self.port)] if self.port is not None else []
        for name, value in given + [("ports", each) for each in ports]:
            if not is_port(value):
                raise _refused(
                    f"{name} of a service has {value!r:.80}, which is no port.",
                    "Give a number from 1 to 65535, as in port=5432.",
                )

    @property
    def all_ports(self) -> tuple[int, ...]:
        """``port`` and ``ports``, each once, the first first."""
        return tuple(dict.fromkeys((*(() if self.port is None else (self.port,)), *self.ports)))


def _refused(why: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, why, hint)
