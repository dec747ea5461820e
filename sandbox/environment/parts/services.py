"""What a sandbox reaches by name whatever its rules are: services of the host, side services, and the package cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sandbox.envelope import Notice
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.services.names import Connector, Name, assign_addresses
from sandbox.network.services.service import PORT
from sandbox.packages.cache import HOST as CACHE_HOST
from sandbox.packages.cache import PORT as CACHE_PORT
from sandbox.packages.cache import PackageCache, Upstreams, describe, variables

if TYPE_CHECKING:
    from sandbox.network.ceiling import Ceiling
    from sandbox.network.relay import Relay
    from sandbox.network.services.host_services import HostServices
    from sandbox.network.streams import Streams
    from sandbox.packages.cache_server import CacheServer

PACKAGE_MANAGERS = ("pip (in a venv)", "npm (if the image has it)")
# Of the number of its name's address: behind those of other services.
_FIRST_OF_CACHE = 250


class SideGroup(Protocol):
    """Side services beside one sandbox; see ``sandbox.docker.services.group``."""

    names: tuple[Name, ...]

    @property
    def running(self) -> Mapping[str, Any]:
        """Those that are ready, by name."""

    def begin(self) -> None:
        """Start them; returns at once."""

    def finish(self) -> None:
        """Wait until all are ready. Raises SandboxError."""

    def close(self, *, wait: bool = False) -> None:
        """End those that were started here; ``wait`` waits until they are gone."""

    def connectors(self) -> Mapping[tuple[str, int], Connector]:
        """Return how each is reached."""

    def notices(self) -> tuple[Notice, ...]:
        """Return the ends that no answer has reported yet."""

    def describe(self) -> str:
        """Return one sentence for the model."""


class CachedPackages:
    """The package cache of one sandbox, by the name ``packages.internal`` and under every policy but a bridge."""

    def __init__(self, cache: PackageCache) -> None:
        self.cache = cache
        self.upstreams: Upstreams | None = None
        self._end: CacheServer | None = None

    def find(self) -> None:
        """Find the indexes to ask, which may take seconds once in a process. Raises SandboxError."""
        if self.upstreams is None:
            self.upstreams = self.cache.upstreams()

    def variables(self) -> dict[str, str]:
        """Return the variables by which package managers find the cache."""
        return {} if self.upstreams is None else variables(self.upstreams)

    def installers(self) -> str | None:
        """Return the package managers that can install from it, in words; None before ``find``."""
        if self.upstreams is None:
            return None
        served = zip(PACKAGE_MANAGERS, (self.upstreams.pypi, self.upstreams.npm), strict=True)
        return " or ".join(manager for manager, url in served if url is not None)

    def connectors(self) -> dict[tuple[str, int], Connector]:
        """Return how it is reached."""
        if self.upstreams is None:
            return {}
        from sandbox.packages.cache_server import CacheServer  # brings HTTP with it

        self._end = CacheServer(self.cache, self.upstreams)
        return {(CACHE_HOST, CACHE_PORT): self._end.dial}

    def close_with(self, streams: Streams) -> None:
        """Close what ``connectors`` opened when ``streams`` end."""
        if self._end is not None:
            streams.at_end.append(self._end.close)

    def describe(self) -> str:
        """Return one sentence for the model; "" before ``find``."""
        return "" if self.upstreams is None else describe(self.upstreams)


class SandboxServices:
    """The names of one sandbox and what stands behind each. Raises SandboxError ``invalid_configuration``."""

    def __init__(
        self, host: HostServices | None = None, side: SideGroup | None = None, cache: PackageCache | None = None
    ) -> None:
        self._host = host
        self._side = side
        self.packages = None if cache is None else CachedPackages(cache)
        # Names that an attached sandbox knows, and whose services were not given to this environment.
        self._missing: tuple[str, ...] = ()

    @property
    def side(self) -> Mapping[str, Any]:
        """The side services that are ready, by name."""
        return {} if self._side is None else self._side.running

    def secrets(self) -> Iterable[tuple[str, str]]:
        """Return (name to show, value) of all that is to be masked."""
        return () if self._host is None else self._host.secrets()

    def names(self) -> tuple[Name, ...]:
        """Return the names that the guest is given. Raises SandboxError if a service has the name of the package cache."""
        found = tuple(each for group in (self._side, self._host) if group is not None for each in group.names)
        if self.packages is None:
            return found
        if CACHE_HOST in {each.name for each in found}:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"There is a service {CACHE_HOST!r} beside the package cache, which has that name.",
                "Give the service another name, or leave out one of them.",
            )
        return (*found, *assign_addresses({CACHE_HOST: (CACHE_PORT,)}, _FIRST_OF_CACHE))

    def refuse_others(self, known: Iterable[str]) -> None:
        """Serve an attached sandbox: the names it knows besides those given here are refused, with the reason."""
        given = {each.name for each in self.names()}
        self._missing = tuple(name for name in known if name not in given)

    def variables(self) -> dict[str, str]:
        """Return the variables that commands need to find the services."""
        return {} if self.packages is None else self.packages.variables()

    def installers(self) -> str | None:
        """Return the package managers that can install packages, in words; None if that does not depend on services."""
        return None if self.packages is None else self.packages.installers()

    # From the start of the sandbox to its end

    def begin(self) -> None:
        """Find the package indexes, and begin to start the side services. Raises SandboxError."""
        if self.packages is not None:
            self.packages.find()
        if self._side is not None:
            self._side.begin()

    def connectors(self, ceiling: Callable[[], Ceiling | None]) -> Mapping[tuple[str, int], Connector]:
        """Return how each name and port is reached. ``ceiling`` bounds the upstreams of the services with credentials."""
        connectors: dict[tuple[str, int], Connector] = {(name, PORT): _not_given(name) for name in self._missing}
        if self._side is not None:
            connectors.update(self._side.connectors())
        if self._host is not None:
            connectors.update(self._host.connectors(ceiling))
        if self.packages is not None:
            connectors.update(self.packages.connectors())
        return connectors

    def close_with(self, streams: Streams) -> None:
        """Close what ``connectors`` opened when ``streams`` end."""
        if self._host is not None:
            self._host.close_with(streams)
        if self.packages is not None:
            self.packages.close_with(streams)

    def finish(self) -> None:
        """Wait until the side services are ready. Raises SandboxError."""
        if self._side is not None:
            self._side.finish()

    def close(self, *, wait: bool = False) -> None:
        """End the side services; ``wait`` waits until they are gone. May be called more than once."""
        if self._side is not None:
            self._side.close(wait=wait)

    # Words

    def notices(self) -> tuple[Notice, ...]:
        """Return the ends of side services that no answer has reported yet."""
        return () if self._side is None else self._side.notices()

    @property
    def are_listed(self) -> bool:
        """Whether ``describe`` names services."""
        return bool(self._listed())

    def _listed(self) -> str:
        return "".join(group.describe() for group in (self._host, self._side) if group is not None)

    def describe(self, mask: Callable[[str], str]) -> str:
        """Return sentences for the model, behind those on the network; "" if nothing is reached by name."""
        missing = ", ".join(self._missing)
        return (
            mask(self._listed())
            + (f" Not now, for who attached to the sandbox did not bring it along: {missing}." if missing else "")
            + ("" if self.packages is None else self.packages.describe())
        )


def _not_given(name: str) -> Connector:
    async def refused(_: Callable[[], Relay]) -> tuple[Relay, str]:
        from sandbox.network.dialling import RefusedError

        why = f"the sandbox was made with {name}, and who attached to it did not bring that along"
        raise RefusedError(why, "not_brought", "cache" if name == CACHE_HOST else "services")

    return refused
