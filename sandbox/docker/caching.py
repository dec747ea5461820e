"""CachingEnvironment: a container whose programs install packages from a cache of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.docker.services.served import ServedEnvironment
from sandbox.environment.sandboxed import PACKAGE_MANAGERS
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.services.names import Connector, Name, assign_addresses
from sandbox.packages.cache import HOST, PORT, PackageCache, Upstreams, describe, variables
from sandbox.packages.cache_server import CacheServer
from sandbox.pipe.transport import Transport

# Of the number of its name's address: behind those of other services.
_FIRST = 250


class CachingEnvironment(ServedEnvironment):
    """Serves the cache while it runs, by the name ``packages.internal`` and under every policy but a bridge."""

    _cache: PackageCache | None = None
    _upstreams: Upstreams | None = None
    _cache_end: CacheServer | None = None

    def _use_cache(self, cache: PackageCache | None) -> None:
        """Have this one. Raises SandboxError ``invalid_configuration`` where programs would not find it."""
        if cache is not None and self._network.mode == "bridge":
            raise SandboxError(
                ErrorCode.invalid_configuration,
                "A sandbox with Network.bridge() has no way to a package cache: its programs go past the host.",
                "Use Network.none(), allow(...) or open() with it.",
            )
        self._cache = cache

    def _start(self) -> None:
        """See ``GuestEnvironment``; finds the indexes of the package cache first, which may take seconds once."""
        if self._cache is not None and self._upstreams is None:
            self._upstreams = self._cache.upstreams()
        super()._start()

    def _cache_variables(self) -> dict[str, str]:
        """By which package managers find the cache."""
        return {} if self._upstreams is None else variables(self._upstreams)

    def _known_of_packages(self) -> dict[str, Any]:
        known = super()._known_of_packages()
        if self._upstreams is not None:
            served = zip(PACKAGE_MANAGERS, (self._upstreams.pypi, self._upstreams.npm), strict=True)
            known["installers"] = " or ".join(manager for manager, url in served if url is not None)
        return known

    def _names(self) -> tuple[Name, ...]:
        names = super()._names()
        if self._cache is None:
            return names
        if HOST in {one.name for one in names}:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"There is a service {HOST!r} beside the package cache, which has that name.",
                "Give the service another name, or leave out one of them.",
            )
        return (*names, *assign_addresses({HOST: (PORT,)}, _FIRST))

    def _connectors(self) -> Mapping[tuple[str, int], Connector]:
        ways = dict(super()._connectors())
        if self._cache is not None and self._upstreams is not None:
            self._cache_end = CacheServer(self._cache, self._upstreams)
            ways[HOST, PORT] = self._cache_end.dial
        return ways

    def _carrying(self, transport: Transport) -> Transport:
        carrying = super()._carrying(transport)
        if self._cache_end is not None and self._egress is not None:
            self._egress.streams.at_end.append(self._cache_end.close)
        return carrying

    def describe(self) -> dict[str, str]:
        """See ``ServedEnvironment.describe``; with what can be installed, once it is started."""
        sections = super().describe()
        if self._upstreams is not None:
            sections["network"] += describe(self._upstreams)
        return sections
