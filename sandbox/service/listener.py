"""The socket that a service listens on: what it accepts counts for its peer until it is closed, also while TLS is negotiated."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from sandbox.errors import ErrorCode, SandboxError

from .http.problems import Problem, ProblemCode
from .places import Places, too_many

# So many connections too many are answered at once; further ones are closed without an answer, so many before others get a turn.
REFUSED_AT_ONCE = 64
CLOSED_AT_ONCE = 100
# A client with one IPv6 address usually has all of its network.
_IPV6_PREFIX = 64


class Listener(socket.socket):
    """A listening socket. ``places`` are those of connections; a connection of a ``trusted`` proxy counts for nobody."""

    def __init__(self, family: socket.AddressFamily, places: Places, trusted: Iterable[str] = ()) -> None:
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sets TCP_NODELAY
        self.places = places
        self._trusted = tuple(ip_network(each) for each in trusted)
        self._refused: dict[int, Problem] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its peer. Raises OSError, as BlockingIOError if there is none now."""
        for _ in range(CLOSED_AT_ONCE):
            plain, peer = super().accept()
            accepted = _Accepted(self.family, self.type, self.proto, fileno=plain.detach())
            holder = self._holder(str(peer[0]))
            if self.places.take(holder):
                accepted.on_close = lambda holder=holder: self.places.give_back(holder)
                return accepted, peer
            if len(self._refused) < REFUSED_AT_ONCE:
                number = accepted.fileno()
                self._refused[number] = self._problem(str(peer[0]), holder)
                accepted.on_close = lambda number=number: self._refused.pop(number, None)
                return accepted, peer
            with contextlib.suppress(OSError):
                accepted.close()
        raise BlockingIOError

    def refusal(self, number: int) -> Problem | None:
        """Return why the connection with that descriptor is one too many; None if it is not."""
        return self._refused.get(number)

    def _holder(self, peer: str) -> str | None:
        address = ip_address(peer.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if any(address.version == each.version and address in each for each in self._trusted):
            return None
        return client_network(str(address))

    def _problem(self, peer: str, holder: str | None) -> Problem:
        if holder is not None and (held := self.places.of(holder)) and self.places.taken < self.places.most:
            return too_many(f"The address {peer}", held)
        return Problem(
            503,
            ProblemCode.too_many_connections,
            f"The service already has {self.places.most} connections.",
            "Close unused connections, and connect again later.",
            retryable=True,
            headers={"Retry-After": "5"},
        )


class _Accepted(socket.socket):
    """A connection that tells when it is closed, however that comes."""

    on_close: Callable[[], object] | None = None

    def close(self) -> None:
        """Close it."""
        told, self.on_close = self.on_close, None
        super().close()
        if told is not None:
            told()


def client_network(address: str) -> str:
    """Return what a client at that address is counted as: an IPv4 address, a network of IPv6; another text is itself."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped is not None else str(ip_network((found, _IPV6_PREFIX), strict=False))
    return str(found)


def listen(host: str, port: int, places: Places, trusted: Iterable[str] = ()) -> Listener:
    """Return a socket bound to an address. Raises SandboxError."""
    made = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, places, trusted)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The service cannot listen on {host}:{port}: {error.strerror or error}.",
            "Give another address or port: --host and --port, or --metrics-listen.",
        ) from error
    return made
