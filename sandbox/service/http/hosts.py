"""Names that requests come to: those of the service, those of ports of sandboxes, and no others.

A page of a stranger whose name was made to lead to this address (DNS rebinding) has another Host, and gets nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandbox.frozen import dataclass

if TYPE_CHECKING:
    from sandbox.service.settings import Settings  # whose checks need this module

LOCALHOST = "localhost"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_PORT_LABEL = re.compile(r"([0-9]{1,5})-([a-z][a-z0-9]{0,40})")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}")


@dataclass(frozen=True, slots=True)
class Host:
    """A Host header: the name in small letters, without brackets; the port if there is one."""

    name: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class PortName:
    """The name of a port of a sandbox; nothing says that there is such a sandbox."""

    port: int
    sandbox: str


def parse_host(text: str) -> Host | None:
    """Return what a Host header says, or None if it is not a host."""
    found = _HOST.fullmatch(text.strip())
    if found is None:
        return None
    name, port = found[1].lower().strip("[]"), None if found[2] is None else int(found[2])
    if not name.endswith("..") and len(name) > 1:
        name = name.removesuffix(".")
    if found[1].startswith("[") and not is_address(name):
        return None
    return None if port is not None and not 0 < port < 65536 else Host(name, port)


def is_dns_name(text: str) -> bool:
    """Return whether a name in small letters, which may begin with ``*.``, is one that a certificate may have."""
    return _DNS_NAME.fullmatch(text) is not None


def parse_port_name(name: str, domain: str) -> PortName | None:
    """Return the port and sandbox of a name such as 8000-abc.example.com, or None for any other name."""
    label, dot, rest = name.partition(".")
    if not dot or rest != domain or (found := _PORT_LABEL.fullmatch(label)) is None:
        return None
    return PortName(int(found[1]), found[2])


# The same few come with every request; what strangers send drives out only one another.
@lru_cache(64)
def _address_of(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Return whether a name is an address."""
    return _address_of(name) is not None


class Hosts:
    """The names of one service: those that ``allowed_hosts`` has, this host's own, and the addresses that it listens on."""

    def __init__(self, settings: Settings) -> None:
        self.domain = settings.domain
        own = {LOCALHOST, socket.gethostname().lower(), settings.host.lower()}
        named = {each.lower() for each in settings.allowed_hosts}
        self._names = frozenset(own | {each for each in named if not each.startswith("*.")})
        self._below = tuple(each.removeprefix("*") for each in named if each.startswith("*."))
        self._origins = frozenset(each for text in settings.allowed_origins if (each := _origin(text)) is not None)

    def is_own(self, host: Host, listener: str) -> bool:
        """Return whether a request to ``host`` that came to the address ``listener`` is for the service."""
        address = _address_of(host.name)
        if address is not None:  # a name that leads here is none; 0.0.0.0 is no address either, but browsers take it for one
            known = host.name in self._names or _same_address(host.name, listener)
            return address.is_loopback or (known and not address.is_unspecified)
        return host.name in self._names or host.name.endswith(self._below or ("\0",))

    def is_allowed_origin(self, origin: str, host: Host, scheme: str) -> bool:
        """Return whether a page of ``origin`` may open a WebSocket at ``host``: one of the same host, or of ``allowed_origins``."""
        found = _origin(origin)
        return found is not None and (found in self._origins or found == (host.name, host.port or _DEFAULT_PORTS.get(scheme)))


def is_own_page(origin: str | None, site: str, mode: str, method: str, host: Host, scheme: str) -> bool:
    """Return whether a browser sends a request for a page of the same host, or because somebody has followed a link.

    The first three are its headers Origin, Sec-Fetch-Site and Sec-Fetch-Mode. Other clients send none of them.
    """
    if origin is not None:
        return _origin(origin) == (host.name, host.port or _DEFAULT_PORTS.get(scheme))
    return site in ("", "same-origin", "none") or (mode == "navigate" and method in ("GET", "HEAD"))


def check_origins(domain: str, names: Sequence[str]) -> None:
    """Raise ValueError if pages of sandboxes and the service would share an origin, or cookies: equal, parent or child."""
    if is_address(domain) or parse_host(domain) != Host(domain) or "." in (domain[0], domain[-1]):
        raise ValueError(f"domain is {domain!r}: give a name, such as sandboxes.example.com")
    for each in names:
        name = each.lower().removeprefix("*.")
        if is_address(name):
            continue
        if parse_host(name) != Host(name):
            raise ValueError(f"allowed_hosts has {each!r}: give names or addresses without a port")
        if LOCALHOST in (name, domain):
            continue
        if name == domain or name.endswith(f".{domain}") or domain.endswith(f".{name}"):
            raise ValueError(
                f"the domain of ports, {domain}, and the name of the service, {name}, belong together, and so a page of a sandbox "
                "could act as one of the service: give ports a domain that is neither equal, nor above, nor below"
            )


def _origin(text: str) -> tuple[str, int | None] | None:
    """Return the host and port of an origin, or None if it is none ("null" is not)."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or parts.username is not None:
        return None
    return parts.hostname.removesuffix("."), port or _DEFAULT_PORTS[parts.scheme]


def _same_address(name: str, listener: str) -> bool:
    own = _address_of(listener)
    # One socket may take both families.
    return own is not None and _address_of(name) == (getattr(own, "ipv4_mapped", None) or own)
