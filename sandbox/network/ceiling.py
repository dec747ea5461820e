"""The ceiling of a sandbox's network: what no rule opens. A service sets one for its tenants, who write the rules.

It holds twice: for what a policy names, at once, and for each address that is about to be dialled. Pure but for the question
whether an address is this host's own, which its routing table answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

from sandbox.errors import ErrorCode, SandboxError, configuration_error
from sandbox.frozen import dataclass

from .addresses import Address, closed_kind, embedded_addresses, is_host_address, parse_address, unmap
from .policy import Network, Verdict
from .rules import ALL_PORTS, Rule, ascii_name

# Names that mean this host, its link or a network of its owner (RFC 6761, 6762, 8375; ICANN has reserved "internal").
_LOCAL = ("localhost", "localdomain", "local", "internal", "home.arpa")
# The ranges in which ``closed_kind`` calls addresses closed, and those that embed IPv4 addresses: a network that is not one address
# may have no part in them.
_CLOSED = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
            *("::/32", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
            *("5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
        ),
    )
)
EVERY = "Write '*', 0.0.0.0/0 or ::/0 for every public address, and public addresses and names for single ones."


class CeilingError(SandboxError):
    """A policy asks for more than the ceiling allows; ``asked`` is the rule, name or mode that does."""

    def __init__(self, asked: str, what: str, why: str, hint: str = EVERY) -> None:
        super().__init__(ErrorCode.invalid_configuration, f"{what} is not allowed by the operator: {why}.", hint)
        self.asked = asked


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that rules can open: public addresses, but none of this host's. Create it with ``public``.

    ``opened`` names addresses and networks that rules may open besides; an address of this host only if a rule of ``opened`` names
    that one address. ``denied`` names what no rule opens. ``own_ports`` are never open at this host's addresses.
    """

    opened: tuple[Rule, ...] = ()
    denied: tuple[Rule, ...] = ()
    own_ports: frozenset[int] = frozenset()

    @classmethod
    def public(cls, *opened: str, denied: Iterable[str] = (), own_ports: Iterable[int] = ()) -> Ceiling:
        """Return a ceiling. The rules are written as in ``Network.allow``; those of ``denied`` without ports mean every port.

        Raises SandboxError ``invalid_configuration``.
        """
        rules = tuple(map(Rule.parse, opened))
        for rule in rules:
            if rule.network is None:
                raise configuration_error(
                    f"{rule.text!r} cannot be opened beyond public addresses: it is not an address or a network.",
                    "Write it as in 10.1.2.0/24:5432. Who is to use it by a name needs a rule with that name as well.",
                )
        return cls(rules, tuple(Rule.parse(text, ALL_PORTS) for text in denied), frozenset(own_ports))

    # What a policy names

    def check(self, network: Network) -> None:
        """Raise CeilingError for the first thing that ``network`` names and that this ceiling closes."""
        if network.mode == "bridge":
            raise CeilingError(
                "bridge", "The mode 'bridge'", "no rule holds on a bridge", "Use the mode 'open', which is every public host."
            )
        for rule in network.rules:
            if (why := self._why_not(rule)) is not None:
                raise CeilingError(rule.text, f"The rule {rule.text!r}", why)
        for name, address in network.names:
            if not self._opens(address, ALL_PORTS) and (why := self._why_closed(address)) is not None:
                raise CeilingError(name, f"The address of {name!r}", why)

    def check_upstream(self, name: str, host: str, port: int) -> None:
        """Raise CeilingError if ``host``, as the upstream of the service ``name``, is closed without looking it up."""
        what, address = f"The upstream of the service {name!r}", parse_address(host)
        found = self.judge_name(ascii_name(host) or host, port) if address is None else self.judge_address(None, address, port)
        if found is not None:
            raise CeilingError(name, what, found.why, "Give one with a public address.")

    def _why_not(self, rule: Rule) -> str | None:
        if any(_covers(denied, rule) for denied in self.denied):
            return "the operator has closed it"
        if rule.private:
            return "its names may have private addresses"
        if rule.name and self._is_local(rule.name):
            return f"{rule.name} is a name of this host or its network"
        network = rule.network
        if network is None or network.prefixlen == 0 or self._opens_network(network, rule.ports):
            return None
        if network.num_addresses == 1:
            return self._why_closed(network.network_address)
        overlap = next((each for each in _CLOSED if each.version == network.version and each.overlaps(network)), None)
        return None if overlap is None else f"{overlap} in it is not public"

    def _why_closed(self, address: Address) -> str | None:
        kind = closed_kind(address)
        if kind is not None:
            return f"{address} is {kind}"
        return f"{address} is not open to tenants" if _is_own(address) else None

    def _is_local(self, name: str) -> bool:
        # With networks of its own open, their names are as good as others.
        return not self.opened and ("." not in name or any(name == each or name.endswith(f".{each}") for each in _LOCAL))

    def _opens_network(
        self, network: ipaddress.IPv4Network | ipaddress.IPv6Network, ports: tuple[tuple[int, int], ...]
    ) -> bool:
        if network.num_addresses == 1:
            return self._opens(network.network_address, ports)
        return any(_holds(rule.network, network) and _has_ports(rule, ports) for rule in self.opened)

    def _opens(self, address: Address, ports: tuple[tuple[int, int], ...]) -> bool:
        return any(self._opens_by(rule, address) and _has_ports(rule, ports) for rule in self.opened)

    def _opens_by(self, rule: Rule, address: Address) -> bool:
        if rule.network is None or not rule.opens_address(address):
            return False
        return rule.network.num_addresses == 1 or not _is_own(address)

    # What is about to be dialled

    def judge_name(self, name: str, port: int) -> Verdict | None:
        """Return the refusal of a name (lower case, no final dot) that needs no look-up, or None."""
        if (denied := self._denial(name, None, port)) is not None:
            return denied
        return self.no_public_address(name) if self._is_local(name) else None

    def judge_address(self, name: str | None, address: Address, port: int) -> Verdict | None:
        """Return the refusal of an address, or None if it may be dialled. ``name`` resolved to it, if any did.

        The words tell no address that a name resolves to: who asks must not learn the names of this host's network.
        """
        address = unmap(address)
        if (denied := self._denial(name, address, port)) is not None:
            return denied
        why = self._why_closed(address)
        opened = self._opens(address, ((port, port),)) and not (port in self.own_ports and _is_own(address))
        if why is None or opened:
            return None
        if name is not None:
            return self.no_public_address(name)
        return Verdict(False, why=f"{why}, and the operator opens public addresses only", kind="ceiling")

    def no_public_address(self, name: str) -> Verdict:
        """Return the refusal of a name, the same for one that does not exist and one with closed addresses."""
        return Verdict(False, why=f"{name} has no public address, and the operator opens no others", kind="ceiling")

    def _denial(self, name: str | None, address: Address | None, port: int) -> Verdict | None:
        spellings = () if address is None else embedded_addresses(address)
        for rule in self.denied:
            everything = not rule.name and rule.network is None
            named = (name is not None and rule.opens_name(name)) or any(map(rule.opens_address, spellings))
            if rule.opens_port(port) and (named or everything):
                return Verdict(False, why=f"the operator has closed {rule.text}", kind="ceiling")
        return None


def _is_own(address: Address) -> bool:
    """Return whether a connection to ``address`` may end at this host."""
    near = (each.is_loopback or each.is_unspecified or is_host_address(each) for each in embedded_addresses(address))
    return any(near)


def _holds(outer: ipaddress.IPv4Network | ipaddress.IPv6Network | None, inner: object) -> bool:
    if isinstance(outer, ipaddress.IPv4Network) and isinstance(inner, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(outer, ipaddress.IPv6Network) and isinstance(inner, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


def _has_ports(rule: Rule, ports: Collection[tuple[int, int]]) -> bool:
    """Return whether one range of ``rule`` has each of these."""
    return all(any(low <= first and last <= high for low, high in rule.ports) for first, last in ports)


def _covers(denied: Rule, rule: Rule) -> bool:
    """Return whether ``denied`` closes all that ``rule`` opens."""
    everything = not denied.name and denied.network is None
    if rule.name:
        hosts = everything or _covers_name(denied, rule)
    elif rule.network is not None:
        hosts = everything or _holds(denied.network, rule.network)
    else:
        hosts = everything
    return hosts and _has_ports(denied, rule.ports)


def _covers_name(denied: Rule, rule: Rule) -> bool:
    if not denied.name:
        return False
    if not rule.below:
        return denied.opens_name(rule.name)
    return denied.below and (rule.name == denied.name or rule.name.endswith(f".{denied.name}"))
