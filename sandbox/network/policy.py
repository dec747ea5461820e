"""The network policy of a sandbox, and its verdict on one connection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Literal

from sandbox.argument_types import check_types
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.text.wording import value_text

from .addresses import PRIVATE, Address, closed_kind, embedded_addresses, is_of_private_network, parse_address, unmap
from .rules import ALL_PORTS, Rule, ascii_name, parse_pinned_name

Mode = Literal["none", "allow", "open", "bridge"]
RefusalKind = Literal[
    "no_rule", "no_host", "closed_by", "closed_address", "limit", "service_port", "not_brought", "asked", "ceiling"
]
Answer = Literal["once", "session"] | None
# Called with a host and port that no rule opens. "once" allows this connection, "session" all later ones to them as well.
Ask = Callable[[str, int], Answer]
# A person may be at it.
ASK_SECONDS = 300.0

# How many rules a model is shown, and how much of each.
MOST_LISTED = 20
MOST_RULE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Network:
    """The network of a sandbox. Create it with ``none``, ``allow``, ``open`` or ``bridge``.

    Except with ``bridge`` a sandbox has no interface but loopback: allowed connections go through the pipe, and the host resolves,
    checks and dials. ``denied`` rules close hosts whatever else opens them, except for those that ``exempt`` rules name, which open
    nothing themselves. ``ask`` is called in its own thread for a host that would be refused, and has ``ask_seconds`` to answer.
    ``names`` are looked up before any resolver, like a hosts file.
    """

    mode: Mode
    rules: tuple[Rule, ...] = ()
    denied: tuple[Rule, ...] = ()
    ask: Ask | None = field(default=None, compare=False)
    names: tuple[tuple[str, Address], ...] = ()
    ask_seconds: float = field(default=ASK_SECONDS, compare=False)
    exempt: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        seconds: object = self.ask_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"ask_seconds={seconds!r:.80} is not a time to wait for an answer.",
                "Give a positive number of seconds, as in 300.0.",
            )

    @classmethod
    def none(cls) -> Network:
        """Return a policy of loopback only. Anything else is refused with the reason."""
        return cls("none")

    @classmethod
    def allow(
        cls,
        *rules: str,
        ask: Ask | None = None,
        names: Mapping[str, str] | None = None,
        ask_seconds: float = ASK_SECONDS,
        private: bool = False,
    ) -> Network:
        """Return a policy that opens what the rules name and nothing else. ``network.rules`` describes how to write them.

        A name opens public addresses only. If it resolves to a private, link-local, loopback or metadata address, a rule must name
        that address too. With ``private`` the names in these rules may resolve to private addresses, as those of a company's own
        package index do; loopback, link-local and metadata addresses and this host's own stay closed.
        ``names`` gives hosts their addresses, as /etc/hosts does (for a split DNS, or in tests): such a name is not resolved, and
        its rule opens that address whatever its kind. The rules still decide which of these names are open.
        Raises SandboxError ``invalid_configuration``.
        """
        parsed = tuple(replace(Rule.parse(text), private=private) for text in rules)
        if private and (unnamed := next((rule for rule in parsed if not rule.name and rule.network is None), None)):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"private=True is for rules that name hosts, and {unnamed.text!r} names every host.",
                "Name the hosts, as in Network.allow('packages.example.com', private=True).",
            )
        return cls("allow", parsed, ask=ask, names=_parse_names(names), ask_seconds=ask_seconds)

    @classmethod
    def open(
        cls,
        *rules: str,
        ask: Ask | None = None,
        names: Mapping[str, str] | None = None,
        ask_seconds: float = ASK_SECONDS,
    ) -> Network:
        """Return a policy that opens all public addresses and ports, and what ``rules`` name. ``names``: see ``allow``."""
        return cls("open", tuple(map(Rule.parse, rules)), ask=ask, names=_parse_names(names), ask_seconds=ask_seconds)

    @classmethod
    def bridge(cls) -> Network:
        """Return the engine's default bridge, for UDP and raw sockets. No rule holds, and the host's services are reachable."""
        return cls("bridge")

    def with_rules(self, *rules: str) -> Network:
        """Return this policy with rules added and denials of the same hosts lifted for their ports. ``none`` becomes ``allow``.

        Two spellings of a host are the same host. A rule without ports lifts a denial without ports completely. A denial of other
        or more hosts stays, as one of ``*.example.com`` does beside ``www.example.com``. Raises SandboxError
        ``invalid_configuration``.
        """
        denied = self.denied
        for text in rules:
            denied = _lift_denials(denied, text)
        return replace(self.granted(*rules), denied=denied)

    def granted(self, *rules: str) -> Network:
        """Return this policy with rules added and its denials kept. Raises SandboxError ``invalid_configuration``."""
        self._check_rules("opened")
        mode: Mode = "allow" if self.mode == "none" else self.mode
        added = tuple(rule for rule in map(Rule.parse, rules) if not any(known.covers(rule) for known in self.rules))
        return replace(self, mode=mode, rules=(*self.rules, *added))

    def without(self, *rules: str) -> Network:
        """Return this policy with everything closed that these rules name, and nothing exempt. A rule without ports closes all.

        Raises SandboxError ``invalid_configuration``.
        """
        self._check_rules("closed")
        closed = tuple(Rule.parse(text, ALL_PORTS) for text in rules)
        added = tuple(rule for rule in closed if not any(known.covers(rule) for known in self.denied))
        left = tuple(rule for rule in self.rules if not any(each.covers(rule) for each in closed))
        return replace(self, rules=left, denied=(*self.denied, *added), exempt=())

    def _check_rules(self, what: str) -> None:
        if self.mode == "bridge":
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"No host can be {what} by a rule here: the bridge is a network that no rule holds for.",
                "Use Network.open() or Network.allow(...) where rules are to hold.",
            )

    def address_of(self, name: str) -> Address | None:
        """Return the address that ``names`` gives ``name`` (lower case, no final dot), or None."""
        return next((address for pinned, address in self.names if pinned == name), None)

    def describe(self, mask: Callable[[str], str] = str, services: bool = False) -> str:
        """Return at most two lines for the model. ``services``: the caller lists services behind them.

        ``mask`` hides secrets, which the name of an opened host may hold.
        """
        if self.mode == "none":
            reachable = "No network: only servers inside this sandbox (127.0.0.1)"
            if services:
                reachable = "No network beyond servers inside this sandbox (127.0.0.1) and the services named here: nothing else"
            return f"{reachable} can be reached; downloads and DNS fail."
        if self.mode == "bridge":
            return "Network through the engine's bridge: the internet and services of the host network can be reached."
        named = _list_rules(self.rules, mask)
        beside = f" except {_list_rules(self.exempt, mask)}" if self.exempt else ""
        closed = f" Not {_list_rules(self.denied, mask)}{beside}." if self.denied else ""
        how = "Through a proxy that the environment variables name (HTTP, HTTPS, SOCKS5); no DNS, UDP or ping." + closed
        if self.mode == "open":
            return f"Every public host can be reached{f', and {named}' if named else ''}. {how}"
        hosts = "these hosts and the services named behind them" if services else "these hosts"
        return f"Only {hosts} can be reached: {named or 'none'}. {how}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a connection is allowed. ``rule`` opens or closes it; ``why`` is the reason for a refusal.

    ``kind`` classifies a refusal and ``about`` gives its detail: for ``closed_by`` the rule that lifts the denial for this port,
    for ``closed_address`` the address.
    """

    allowed: bool
    rule: str = ""
    why: str = ""
    kind: RefusalKind = "no_rule"
    about: str = ""


def judge_host(network: Network, host: str, port: int) -> Verdict:
    """Judge ``host``, a name or any spelling of an address, before it is resolved."""
    address = parse_address(host)
    if address is not None:
        return judge_address(network, None, address, port)
    name = ascii_name(host)
    if name is None:
        return Verdict(
            False, why="that is neither the name of a host nor an address that a rule could open", kind="no_host"
        )
    if (denied := _find_denial(network, name, None, port)) is not None:
        return denied
    if network.mode in ("open", "bridge"):
        return Verdict(True, network.mode)
    rule = _rule_for_name(network, name, port)
    if rule is not None:
        return Verdict(True, rule.text)
    return Verdict(False, why=_why_no_rule(network, name, port))


def judge_address(network: Network, name: str | None, address: Address, port: int, own: bool = False) -> Verdict:
    """Judge whether ``address`` may be dialled; ``name`` resolved to it, or is None if the address itself was asked for.

    ``own`` says that the address is one of this host's own, which are closed like loopback.
    """
    address = unmap(address)
    if (denied := _find_denial(network, name, address, port)) is not None:
        return denied
    by_address = next((r for r in network.rules if r.opens_port(port) and r.opens_address(address)), None)
    by_name = _rule_for_name(network, name, port) if name is not None else None
    closed = "an address of the host itself" if own else closed_kind(address)
    if name is not None and network.address_of(name) == address:
        closed = None  # the policy's author named it
    if closed == PRIVATE and name is not None and _opens_private(network, name, address, port):
        closed = None
    if by_address is not None and (name is None or by_name is not None or network.mode == "open"):
        return Verdict(True, by_address.text)
    opened = network.mode in ("open", "bridge") or by_name is not None
    everything = any(not r.name and r.network is None and r.opens_port(port) for r in network.rules)
    if closed is None and (opened or (name is None and everything)):
        return Verdict(True, by_name.text if by_name is not None else network.mode if not everything else "*")
    if closed is not None and (opened or everything):
        what = f"{name} resolves to {address}, {closed}" if name is not None else f"{address} is {closed}"
        why = f"{what}, which only a rule that names the address opens"
        return Verdict(False, why=why, kind="closed_address", about=str(address))
    return Verdict(False, why=_why_no_rule(network, str(address), port))


def _list_rules(rules: tuple[Rule, ...], mask: Callable[[str], str]) -> str:
    more = f" and {len(rules) - MOST_LISTED} more" if len(rules) > MOST_LISTED else ""
    return ", ".join(mask(rule.text)[:MOST_RULE_CHARS] for rule in rules[:MOST_LISTED]) + more


def _lift_denials(denied: tuple[Rule, ...], text: str) -> tuple[Rule, ...]:
    """Return the denials that stay when the rule ``text`` is allowed."""
    opened, every = Rule.parse(text), Rule.parse(text, ALL_PORTS)
    left: list[Rule] = []
    for rule in denied:
        if not rule.same_hosts(opened):
            left.append(rule)
        elif rule.ports != every.ports:  # else it is the same rule, perhaps spelled otherwise
            left += rule.without_ports(opened.ports)
    return tuple(left)


def _find_denial(network: Network, name: str | None, address: Address | None, port: int) -> Verdict | None:
    spellings = () if address is None else embedded_addresses(address)
    if any(_is_exempt(rule, name, address, port) for rule in network.exempt):
        return None
    for rule in network.denied:
        named = (name is not None and rule.opens_name(name)) or any(map(rule.opens_address, spellings))
        everything = not rule.name and rule.network is None
        if rule.opens_port(port) and (named or everything):
            return Verdict(False, rule.text, f"the rule {rule.text} closes it", "closed_by", rule.at_port(port))
    return None


def _is_exempt(rule: Rule, name: str | None, address: Address | None, port: int) -> bool:
    named = name is not None and rule.opens_name(name)
    return rule.opens_port(port) and (named or (address is not None and rule.opens_address(address)))


def _opens_private(network: Network, name: str, address: Address, port: int) -> bool:
    """Return whether a rule with ``private`` names ``name``, and the address is private in every form that it embeds."""
    named = any(rule.private and rule.opens_port(port) and rule.opens_name(name) for rule in network.rules)
    return named and all(map(is_of_private_network, embedded_addresses(address)))


def _rule_for_name(network: Network, name: str, port: int) -> Rule | None:
    return next((rule for rule in network.rules if rule.opens_port(port) and rule.opens_name(name)), None)


def _parse_names(names: Mapping[str, str] | None) -> tuple[tuple[str, Address], ...]:
    check_types("Network", names=(names, Mapping | None))
    for name, address in (names or {}).items():
        check_types("Network", **{"a name in names": (name, str), f"the address of {value_text(name)}": (address, str)})
    return tuple(parse_pinned_name(name, address) for name, address in (names or {}).items())


def _why_no_rule(network: Network, host: str, port: int) -> str:
    if network.mode == "none":
        return "this sandbox has no network"
    for rule in network.rules:
        if rule.name == host and rule.below:
            return f"{rule.text} opens the names below it, not {host} itself"
    near = ", ".join(rule.text for rule in network.rules if rule.opens_name(host))
    return f"port {port} of it is not opened by {near}" if near else "no rule opens it"
