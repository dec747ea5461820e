"""The services with credentials of one sandbox, and a server for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.errors import configuration_error

from .names import Connector, Name, assign_addresses
from .service import PORT, Service

if TYPE_CHECKING:
    from sandbox.network.ceiling import Ceiling
    from sandbox.network.streams import Streams

    from .service_server import ServiceServer

# Their addresses begin behind those of side services, of which there may be 64.
_FIRST = 100


def split_services(
    services: Iterable[Service] | Mapping[str, Any] | None,
) -> tuple[tuple[Service, ...], dict[str, Any]]:
    """Return the services with credentials, and all other services by name. Raises SandboxError ``invalid_configuration``."""
    host: list[Service] = []
    others: dict[str, Any] = {}
    for name, service in _pairs(services):
        if not isinstance(service, Service):
            others[name] = service
        elif name != service.name:
            raise configuration_error(
                f"The service {service.name!r} was given as {name!r}.", f"Give it as {service.name!r}."
            )
        else:
            host.append(service)
    names = [service.host for service in host] + list(others)
    for name in names:
        if names.count(name) > 1:
            raise configuration_error(f"There are two services for {name!r}.", "Give each a name of its own.")
    for service in host:
        if service.ca_bundle is not None and not os.access(service.ca_bundle, os.R_OK):
            raise configuration_error(
                f"{service.ca_bundle!r} of {service.name!r} cannot be read.", "Give a file of certificates."
            )
    return tuple(host), others


def _pairs(services: Iterable[Service] | Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    if services is None:
        return ()
    if isinstance(services, Mapping):
        return services.items()
    found = list(services)
    for service in found:
        if not isinstance(service, Service):
            raise configuration_error(
                f"{service!r:.80} has no name.", "Give services that have none as {name: service}."
            )
    return [(service.name, service) for service in found]


class HostServices:
    """The services with credentials of one sandbox. ``names`` are the names that it reaches them by."""

    def __init__(self, services: tuple[Service, ...]) -> None:
        self.services = services
        self.names: tuple[Name, ...] = assign_addresses({service.host: (PORT,) for service in services}, _FIRST)
        self._servers: list[ServiceServer] = []

    def connectors(self, ceiling: Callable[[], Ceiling | None]) -> dict[tuple[str, int], Connector]:
        """Create a server for each service, and return how to connect to it. ``close_with`` names the loop it lives in."""
        if self.services:
            from .service_server import ServiceServer

            self._servers = [ServiceServer(service, ceiling) for service in self.services]
        return {(server.service.host, PORT): server.dial for server in self._servers}

    def close_with(self, streams: Streams) -> None:
        """Close the present servers when ``streams`` end."""
        streams.at_end += [server.close for server in self._servers]

    def secrets(self) -> Iterable[tuple[str, str]]:
        """Return (name to show, value) for every secret that must be masked."""
        return ((service.name, value) for service in self.services for value in service.secrets())

    def describe(self) -> str:
        """Return one sentence for the model, or "" without services."""
        listed = [service.describe() for service in self.services]
        return f" Reached by plain HTTP, with the credentials they need: {', '.join(listed)}." if listed else ""
