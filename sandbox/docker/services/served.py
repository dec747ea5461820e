"""ServedEnvironment: a container with side services beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sandbox.docker.contained import ContainedEnvironment
from sandbox.envelope import Envelope, Failure, Notice
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.dialling import RefusedError
from sandbox.network.services.host import HostServices, split_services
from sandbox.network.services.names import Connector, Name
from sandbox.network.services.service import PORT, Service
from sandbox.network.services.side import SideService
from sandbox.operations import LogsResult
from sandbox.packages.cache import HOST as CACHE_HOST

if TYPE_CHECKING:
    from sandbox.docker.kept.kept import Kept
    from sandbox.network.relay import Relay
    from sandbox.pipe.transport import Transport

    from .group import Beside
    from .running import RunningService


def check_attached(services: Sequence[Service] | Mapping[str, Any] | None) -> None:
    """Raises SandboxError ``invalid_configuration`` for services that an attached sandbox cannot have."""
    if beside := split_services(services)[1]:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"A kept sandbox cannot have the side services {', '.join(beside)}: they end with the process that made them.",
            "Give attach only the Services of the host that the sandbox was made with; run other servers inside it.",
        )


def check_known(found: Kept, services: Sequence[Service] | None, cache: bool) -> None:
    """Raises SandboxError ``invalid_configuration`` for what a kept sandbox cannot reach: its names are those it was made with."""
    asked = [service.host for service in split_services(services)[0]] + ([CACHE_HOST] if cache else [])
    unknown = [name for name in asked if name not in found.names]
    if unknown:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The sandbox {found.name or found.container_id[:12]} does not know {', '.join(unknown)}: "
            "its names of services are those it was made with.",
            f"It knows {', '.join(found.names) or 'none'}: bring only those, or make another sandbox.",
        )


def _not_brought(name: str) -> Connector:
    async def refused(_: Callable[[], Relay]) -> tuple[Relay, str]:
        why = f"the sandbox was made with {name}, and who attached to it did not bring that along"
        raise RefusedError(why, "not_brought", "cache" if name == CACHE_HOST else "services")

    return refused


class ServedEnvironment(ContainedEnvironment):
    """Starts its side services together with itself, and ends them with itself."""

    _beside: Beside | None = None
    _of_host = HostServices(())
    # What an attached sandbox knows the names of, and has not been given.
    _missing: tuple[str, ...] = ()

    def _stand_beside(
        self, services: Mapping[str, SideService | RunningService], keep: bool, report: Callable[[str], None]
    ) -> None:
        """Have these services. Raises SandboxError ``invalid_configuration``."""
        if not services:
            return
        if keep:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"A kept sandbox cannot have the side services {', '.join(services)}: they end with the process that made them.",
                "Leave out keep=True, or run the servers inside the sandbox.",
            )
        from .group import Beside  # which makes environments itself

        self._beside = Beside(services, report, self.hidden)

    @property
    def services(self) -> Mapping[str, RunningService]:
        """The side services that are ready, by their names; all of them once the sandbox is started."""
        return {} if self._beside is None else self._beside.running

    def service_logs(self, name: str, **options: Any) -> Envelope[LogsResult]:
        """See ``Environment.service_logs``; the failure ``invalid_arguments`` for a name that no service has."""
        service = self.services.get(name)
        if service is not None:
            return self.hidden.envelope(service.logs(**options))
        known = ", ".join(self.services) or "none"
        return Failure(ErrorCode.invalid_arguments, f"There is no side service {name!r}.", f"There are: {known}.")

    def _start(self) -> None:
        """See ``GuestEnvironment``; returns when all side services are ready. Raises SandboxError, NotReadyError."""
        if self._beside is None or self._closed:
            super()._start()
            return
        try:
            self._beside.begin()
            super()._start()
            self._beside.finish()
        except BaseException:
            self.close()
            raise

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            if self._beside is not None:
                self._beside.close()

    def _use_of_host(self, services: HostServices) -> None:
        """Have these services of the host; what is secret of them is masked wherever it would be shown."""
        self._of_host = services
        for name, value in services.secrets():
            self.hidden.hide(name, value)

    def _names(self) -> tuple[Name, ...]:
        return (*(() if self._beside is None else self._beside.names), *self._of_host.names)

    def _connectors(self) -> Mapping[tuple[str, int], Connector]:
        missing = {(name, PORT): _not_brought(name) for name in self._missing}
        return {**missing, **({} if self._beside is None else self._beside.connectors()), **self._of_host.connectors()}

    def _bring_no_more_than(self, found: Kept) -> None:
        """Be the orchestrator of that sandbox: what else it knows by name is refused in words."""
        brought = {name.name for name in self._names()}
        self._missing = tuple(name for name in found.names if name not in brought)

    def _carrying(self, transport: Transport) -> Transport:
        carrying = super()._carrying(transport)
        if self._egress is not None:
            self._of_host.close_with(self._egress.streams)
        return carrying

    def _host_notices(self) -> tuple[Notice, ...]:
        return () if self._beside is None else self._beside.notices()

    def describe(self) -> dict[str, str]:
        """See ``ContainedEnvironment.describe``; with the names of the side services."""
        sections = super().describe()
        named = self._of_host.describe() + ("" if self._beside is None else self._beside.describe())
        if named:
            mask = self.hidden.mask.names
            sections["network"] = self.network.describe(mask, services=True) + mask(named)
        if self._missing:
            names = ", ".join(self._missing)
            sections["network"] += f" Not now, for who attached to the sandbox did not bring it along: {names}."
        return sections
