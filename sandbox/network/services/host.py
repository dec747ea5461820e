"""The services of the host that one sandbox has: taken apart from what else it is given, and the way to each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.streams import Streams

from .http_end import ServiceEnd
from .names import Name, Way, named
from .service import PORT, Service

# Addresses of their names begin behind those of side services, of which there may be 64.
_FIRST = 100


def taken_apart(services: Iterable[Service] | Mapping[str, Any] | None) -> tuple[tuple[Service, ...], dict[str, Any]]:
    """Services of the host, and all others by name. Raises SandboxError ``invalid_configuration``."""
    host: list[Service] = []
    others: dict[str, Any] = {}
    for name, service in _pairs(services):
        if not isinstance(service, Service):
            others[name] = service
        elif name != service.name:
            raise _refused(f"The service {service.name!r} was given as {name!r}.", f"Give it as {service.name!r}.")
        else:
            host.append(service)
    names = [service.host for service in host] + list(others)
    for name in names:
        if names.count(name) > 1:
            raise _refused(f"There are two services for {name!r}.", "Give each a name of its own.")
    for service in host:
        if service.ca_bundle is not None and not os.access(service.ca_bundle, os.R_OK):
            raise _refused(f"{service.ca_bundle!r} of {service.name!r} cannot be read.", "Give a file of certificates.")
    return tuple(host), others


def _pairs(services: Iterable[Service] | Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    if services is None:
        return ()
    if isinstance(services, Mapping):
        return services.items()
    found = list(services)
    for service in found:
        if not isinstance(service, Service):
            raise _refused(f"{service!r:.80} has no name.", "Give services that have none as {name: service}.")
    return [(service.name, service) for service in found]


class HostServices:
    """The services of one sandbox. ``names`` are what it is told of them."""

    def __init__(self, services: tuple[Service, ...]) -> None:
        self.services = services
        self.names: tuple[Name, ...] = named({service.host: (PORT,) for service in services}, _FIRST)
        self._ends: list[ServiceEnd] = []

    def ways(self) -> dict[tuple[str, int], Way]:
        """How each is reached, in the loop of the connections that ``ended_with`` names."""
        self._ends = [ServiceEnd(service) for service in self.services]
        return {(end.service.host, PORT): end.dial for end in self._ends}

    def ended_with(self, streams: Streams) -> None:
        """Close what the ways of now opened when ``streams`` end."""
        streams.at_end += [end.close for end in self._ends]

    def secrets(self) -> Iterable[tuple[str, str]]:
        """(name to show, value) of all that is to be masked."""
        return ((service.name, value) for service in self.services for value in service.secrets())

    def describe(self) -> str:
        """One sentence for the model; "" where there is none."""
        listed = [service.describe() for service in self.services]
        return f" Reached by plain HTTP, with the credentials they need: {', '.join(listed)}." if listed else ""


def _refused(why: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, why, hint)
