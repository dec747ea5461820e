"""The rules of a network policy: which hosts and ports each one names. Pure.

A rule is ``HOST`` or ``HOST:PORTS``. HOST is a name (``example.com``), all names below one (``*.example.org``), an address, a
network (``10.1.2.0/24``, ``[2001:db8::/32]``) or ``*``. PORTS is a number, a range (``8000-8100``) or ``*``; without it the ports
are those of the web, 80 and 443.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace

from sandbox.errors import SandboxError, configuration_error
from sandbox.frozen import dataclass

from .addresses import Address, parse_address, unmap

WEB_PORTS = ((80, 80), (443, 443))
ALL_PORTS = ((1, 65535),)
# Labels as resolvers accept them: letters, digits and hyphens; underscores occur in practice.
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """Hosts and ports that a policy opens or closes. Create it with ``Rule.parse``.

    ``name`` is a lower-case host name; with ``below`` the rule means all names below it, but not itself. A rule for addresses has
    a ``network`` and no name; a rule for everything (``*``) has neither. ``ports`` are ranges with both ends included. ``private``
    says that the hosts it names may have private addresses.
    """

    text: str
    name: str = ""
    below: bool = False
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
    ports: tuple[tuple[int, int], ...] = WEB_PORTS
    private: bool = False

    @classmethod
    def parse(cls, text: str, default: tuple[tuple[int, int], ...] = WEB_PORTS) -> Rule:
        """Parse ``text``; without ports in it the rule has the ports ``default``.

        Raises SandboxError ``invalid_configuration`` that says what is wrong with the text.
        """
        if not isinstance(text, str):
            raise _invalid_rule(
                text, "it is not a text", 'Give each rule by itself: "example.com", "*.example.org:443".'
            )
        text = text.strip()
        host, ports = _split(text, default)
        if host == "*":
            return cls(text, ports=ports)
        below = host.startswith("*.")
        bare = host[2:] if below else host
        network = None if below else _network(bare)
        if network is not None:
            return cls(text, network=network, ports=ports)
        name = ascii_name(bare)
        if name is None or "*" in bare:
            raise _invalid_rule(text, f"{host!r} is not a host name, address or network")
        return cls(text, name, below, ports=ports)

    def same_hosts(self, other: Rule) -> bool:
        """Return whether both rules name the same hosts, in any spelling. Ports do not matter."""
        return (self.name, self.below, self.network) == (other.name, other.below, other.network)

    def covers(self, other: Rule) -> bool:
        """Return whether it names the hosts of ``other`` and all its ports."""
        return self.same_hosts(other) and not other.without_ports(self.ports)

    def without_ports(self, ports: tuple[tuple[int, int], ...]) -> tuple[Rule, ...]:
        """Return a rule for each range that is left without ``ports``, or this rule itself if it has none of them."""
        left = self.ports
        for low, high in ports:
            parts = [
                (a, b) for first, last in left for a, b in ((first, min(last, low - 1)), (max(first, high + 1), last))
            ]
            left = tuple(dict.fromkeys((a, b) for a, b in parts if a <= b))
        if set(left) == set(self.ports):
            return (self,)
        return tuple(replace(self, text=self._text_for((each,)), ports=(each,)) for each in left)

    def at_port(self, port: int) -> str:
        """Return the text of a rule for the same hosts and this port only."""
        return self._text_for(((port, port),))

    def _text_for(self, ports: tuple[tuple[int, int]]) -> str:
        host = f"{'*.' if self.below else ''}{self.name}" or "*"
        if self.network is not None:
            single = self.network.num_addresses == 1
            host = str(self.network.network_address if single else self.network)
            host = f"[{host}]" if ":" in host else host
        ((low, high),) = ports
        return f"{host}:{low}" if low == high else f"{host}:{low}-{high}"

    def opens_port(self, port: int) -> bool:
        """Return whether the rule has ``port``."""
        return any(low <= port <= high for low, high in self.ports)

    def opens_name(self, name: str) -> bool:
        """Return whether the rule names that host (lower case, no final dot). ``*`` names all."""
        if self.network is not None:
            return False
        if not self.name:
            return True
        return name.endswith(f".{self.name}") if self.below else name == self.name

    def opens_address(self, address: Address) -> bool:
        """Return whether the rule names that address or a network around it."""
        network = self.network
        return network is not None and unmap(address).version == network.version and unmap(address) in network


def ascii_name(host: str) -> str | None:
    """Return a host name as resolvers accept it (lower case, IDNA, no final dot), or None if ``host`` is not a name."""
    text = host.removesuffix(".")
    try:
        name = text.lower() if text.isascii() else text.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or parse_address(name) is not None:
        return None
    return None if labels[-1].isdigit() else name  # a resolver would read it as a number


def canonical_host(host: str) -> str:
    """Return the one spelling of a host that is judged, asked about and shown. Text that is not a host is put on one line."""
    address = parse_address(host)
    if address is not None:
        return str(unmap(address))
    return ascii_name(host) or "".join(c if c.isprintable() else ascii(c)[1:-1] for c in host)


def rule_for(host: str, port: int) -> str:
    """Return the rule that opens exactly this host and port. Raises SandboxError ``invalid_configuration`` for anything else."""
    if not is_host(host):
        raise _invalid_rule(host, "it is not a host name or address")
    known = canonical_host(host)
    return f"{f'[{known}]' if ':' in known else known}:{port}"


def is_host(text: str) -> bool:
    """Return whether ``text`` is the name of one host, or one address in any spelling."""
    return parse_address(text) is not None or ascii_name(text) is not None


def parse_pinned_name(name: str, address: str) -> tuple[str, Address]:
    """Parse a line of a hosts file into a name and its address. Raises SandboxError ``invalid_configuration``."""
    host, found = ascii_name(name), parse_address(address)
    if host is None or found is None:
        what = f"{name!r} is not a host name" if host is None else f"{address!r} is not an address"
        raise configuration_error(
            f"{name!r}: {address!r} is not an entry of a network's names: {what}.",
            'Write them as {"db.example.com": "10.1.2.3"}.',
        )
    return host, unmap(found)


def _split(text: str, default: tuple[tuple[int, int], ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    if "://" in text or text.startswith("/"):
        bare = text.partition("://")[2].partition("/")[0] or "example.com"
        raise _invalid_rule(text, "it is a URL or a path, and rules are for hosts", f"Write {bare!r} instead.")
    host, colon, ports = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]") and not host.startswith("[")):  # a bare IPv6 address
        return text, default
    if host.startswith("[") and "]" not in host:  # the colon is inside [...]
        return text, default
    if ports == "*":
        return host, ALL_PORTS
    found = _PORTS.fullmatch(ports)
    low = int(found[1]) if found else 0
    high = int(found[2] or found[1]) if found else 0
    if not 0 < low <= high <= 65535:
        raise _invalid_rule(text, f"{ports!r} is not a port, range of ports or *")
    return host, ((low, high),)


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if "/" not in text:
        address = parse_address(text)
        return None if address is None else ipaddress.ip_network(unmap(address))
    if "%" in text:
        raise _invalid_rule(host, "a zone has no meaning there")
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise _invalid_rule(host, str(error)) from error
    # Mapped addresses are judged as IPv4.
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.IPv4Network((int(mapped), network.prefixlen - 96))


def _invalid_rule(text: object, why: str, hint: str = "") -> SandboxError:
    hint = hint or "Write them as example.com, *.example.org:443, 10.1.2.0/24:5432 or [2001:db8::1]:8080."
    return configuration_error(f"{text!r} is not a rule of a network: {why}.", hint)
