"""Names of services that a sandbox reaches through the pipe, whatever its network rules are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from sandbox.errors import configuration_error
from sandbox.frozen import dataclass
from sandbox.network.rules import ascii_name

if TYPE_CHECKING:
    from sandbox.network.relay import Relay

# A network of loopback addresses that nothing else is likely to use; the guest knows it too (``guest.watch.sockets.NAMES``).
_PREFIX = "127.24.0."
MOST_NAMES = 64
MOST_PORTS = 32

# Connects the relay that the argument creates, and returns it and the address. Raises RefusedError, UnreachableError.
Connector: TypeAlias = "Callable[[Callable[[], Relay]], Awaitable[tuple[Relay, str]]]"


@dataclass(frozen=True, slots=True)
class Name:
    """A host name in the sandbox with a loopback address of its own, and the ports that are served."""

    name: str
    address: str
    ports: tuple[int, ...]


def assign_addresses(ports: Mapping[str, tuple[int, ...]], first: int = 2) -> tuple[Name, ...]:
    """Give each name an address, from the number ``first`` on.

    Raises SandboxError ``invalid_configuration`` for an invalid name or port, or too many of them.
    """
    if len(ports) > MOST_NAMES:
        raise configuration_error(
            f"There are {len(ports)} services, and a sandbox can have {MOST_NAMES}.", "Leave some out."
        )
    for name, numbers in ports.items():
        if ascii_name(name) != name or name == "localhost" or name.endswith(".localhost"):
            raise configuration_error(
                f"{name!r} is not a valid name for a service.",
                "Use lower-case letters, digits and hyphens, as in 'db'.",
            )
        if not numbers or len(numbers) > MOST_PORTS or not all(0 < number < 65536 for number in numbers):
            raise configuration_error(
                f"The service {name!r} has the ports {list(numbers)[:40]}, and 1 to {MOST_PORTS} between 1 and 65535 are possible.",
                "Give the port it listens on, as in port=5432.",
            )
    return tuple(
        Name(name, f"{_PREFIX}{number}", tuple(dict.fromkeys(numbers)))
        for number, (name, numbers) in enumerate(ports.items(), first)
    )


def for_guest(names: tuple[Name, ...]) -> list[tuple[str, str, list[int]]]:
    """Return the names as the guest reads them (``guest.network.service_names``)."""
    return [(name.name, name.address, list(name.ports)) for name in names]


def no_proxy_value(names: tuple[Name, ...], before: str) -> str:
    """Return the value of ``no_proxy`` that also covers these names; ``before`` is its value without them."""
    listed = before.split(",") if before else ["localhost", "127.0.0.1", "::1"]
    return ",".join(dict.fromkeys([*filter(None, listed), *(name.name for name in names)]))
