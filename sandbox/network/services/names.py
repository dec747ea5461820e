"""Names that a sandbox reaches by the pipe whatever its rules are, because its owner put a service behind each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.relay import Relay
from sandbox.network.rules import ascii_name

# A network of loopback addresses that nothing else is likely to use; the guest knows it too (``guest.sockets.NAMES``).
_FIRST = "127.24.0."
MOST_NAMES = 64
MOST_PORTS = 32

# Connects the protocol that the function makes; answers it, and what was dialled. Raises RefusedError, UnreachableError.
Way = Callable[[Callable[[], Relay]], Awaitable[tuple[Relay, str]]]


@dataclass(frozen=True, slots=True)
class Name:
    """A host name of the sandbox with its own loopback address there, and the ports that are served."""

    name: str
    address: str
    ports: tuple[int, ...]


def named(ports: Mapping[str, tuple[int, ...]], first: int = 2) -> tuple[Name, ...]:
    """The names with an address each, from the number ``first`` on.

    Raises SandboxError ``invalid_configuration`` for what cannot be one.
    """
    if len(ports) > MOST_NAMES:
        raise _refused(f"There are {len(ports)} services, and a sandbox can have {MOST_NAMES}.", "Leave some out.")
    for name, numbers in ports.items():
        if ascii_name(name) != name or name == "localhost" or name.endswith(".localhost"):
            raise _refused(
                f"{name!r} is no name for a service.", "Use lower-case letters, digits and hyphens, as in 'db'."
            )
        if not numbers or len(numbers) > MOST_PORTS or not all(0 < number < 65536 for number in numbers):
            raise _refused(
                f"The service {name!r} has the ports {list(numbers)[:40]}, and 1 to {MOST_PORTS} between 1 and 65535 are possible.",
                "Give the port it listens on, as in port=5432.",
            )
    return tuple(
        Name(name, f"{_FIRST}{number}", tuple(dict.fromkeys(numbers)))
        for number, (name, numbers) in enumerate(ports.items(), first)
    )


def for_guest(names: tuple[Name, ...]) -> list[tuple[str, str, list[int]]]:
    """What the guest is told of them (see ``guest.names``)."""
    return [(one.name, one.address, list(one.ports)) for one in names]


def without_proxy(names: tuple[Name, ...], before: str) -> str:
    """The value of ``no_proxy`` with which clients go to these names directly; ``before`` is what it would be without."""
    listed = before.split(",") if before else ["localhost", "127.0.0.1", "::1"]
    return ",".join(dict.fromkeys([*(one for one in listed if one), *(one.name for one in names)]))


def _refused(why: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, why, hint)
