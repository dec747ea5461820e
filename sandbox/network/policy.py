"""Network policy of a sandbox: pure values, and the judgement of one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sandbox.argument_types import check_types
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text

from .addresses import PRIVATE, Address, carried, closed_kind, is_of_private_network, literal, plain
from .rules import ALL_PORTS, Rule, ascii_name, pinned_name

Mode = Literal["none", "allow", "open", "bridge"]
RefusalKind = Literal["no_rule", "no_host", "closed_by", "closed_address", "limit", "service_port", "not_brought", "asked"]
Answer = Literal["once", "session"] | None
# Asked about a host that no rule opens: "once" lets this connection through, "session" all to that host and port from now on.
Ask = Callable[[str, int], Answer]
# A person may be at it.
ASK_SECONDS = 300.0

# What a model is told where nothing is open, and what in its place where there are services.
ALONE = "No network: only servers inside this sandbox (127.0.0.1)"
BUT_SERVICES = "No network beyond servers inside this sandbox (127.0.0.1) and the services named here: nothing else"
# Where rules open hosts, and what in its place where there are services too.
ONLY_HOSTS = "Only these hosts can be reached:"
HOSTS_AND_SERVICES = "Only these hosts and the services named behind them can be reached:"
# What a model is told of: so many rules, and so much of each.
MOST_LISTED = 20
MOST_RULE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Network:
    """What network a sandbox has. Use the constructors.

    But for ``bridge`` it has no interface beside loopback: what is allowed goes through the pipe, and the host resolves, checks
    and dials. ``denied`` are rules of what stays closed whatever opens it. ``ask`` is called for a host that is refused otherwise,
    in a thread of its own, and has ``ask_seconds`` for its answer. ``names`` are looked up before any resolver, like a hosts file.
    """

    mode: Mode
    rules: tuple[Rule, ...] = ()
    denied: tuple[Rule, ...] = ()
    ask: Ask | None = field(default=None, compare=False)
    names: tuple[tuple[str, Address], ...] = ()
    ask_seconds: float = field(default=ASK_SECONDS, compare=False)

    def __post_init__(self) -> None:
        seconds: object = self.ask_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"ask_seconds={seconds!r:.80} is no time to wait for an answer.",
                "Give a positive number of seconds, as in 300.0.",
            )

    @classmethod
    def none(cls) -> Network:
        """Nothing but loopback; the rest is refused with words."""
        return cls("none")

    @classmethod
    def allow(
        cls, *rules: str, ask: Ask | None = None, names: Mapping[str, str] | None = None, ask_seconds: float = ASK_SECONDS,
        private: bool = False,
    ) -> Network:  # fmt: skip
        """What the rules name and nothing else; see ``rules`` for how they are written.

        A name opens public addresses alone: one that resolves to a private, link-local, loopback or metadata address needs
        that address named too. With ``private`` the names of these rules may resolve to private addresses, as those of a
        company's own package index do; loopback, link-local and metadata addresses and this host's own stay closed.
        ``names`` gives hosts their addresses, as /etc/hosts does (behind a split DNS, in tests): a name there is not resolved, and
        its address counts as named for it; rules still say which of them are open.
        Raises SandboxError ``invalid_configuration``.
        """
        parsed = tuple(replace(Rule.parse(text), private=private) for text in rules)
        if private and (unnamed := next((rule for rule in parsed if not rule.name and rule.network is None), None)):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"private=True is for rules that name hosts, and {unnamed.text!r} names every host.",
                "Name the hosts, as in Network.allow('packages.example.com', private=True).",
            )
        return cls("allow", parsed, ask=ask, names=_pinned(names), ask_seconds=ask_seconds)

    @classmethod
    def open(
        cls, *rules: str, ask: Ask | None = None, names: Mapping[str, str] | None = None, ask_seconds: float = ASK_SECONDS
    ) -> Network:  # fmt: skip
        """Every public address and port; ``rules`` name what of the rest is open too, ``names`` as in ``allow``."""
        return cls("open", tuple(map(Rule.parse, rules)), ask=ask, names=_pinned(names), ask_seconds=ask_seconds)

    @classmethod
    def bridge(cls) -> Network:
        """The engine's default bridge, for UDP and raw sockets: no rule holds there, and the host's services are reachable."""
        return cls("bridge")

    def with_rules(self, *rules: str) -> Network:
        """The same with these rules added; ``none`` becomes ``allow``, and denials of the same hosts are lifted for these ports.

        However both are written; a denial without ports is lifted whole by a rule without. One of other or more hosts stays, as
        ``*.example.com`` beside ``www.example.com``. Raises SandboxError ``invalid_configuration``.
        """
        denied = self.denied
        for text in rules:
            denied = _lifted(denied, text)
        return replace(self.granted(*rules), denied=denied)

    def granted(self, *rules: str) -> Network:
        """The same with these rules added; what is denied stays so. Raises SandboxError ``invalid_configuration``."""
        self._check_rules("opened")
        mode: Mode = "allow" if self.mode == "none" else self.mode
        added = tuple(rule for rule in map(Rule.parse, rules) if not any(known.covers(rule) for known in self.rules))
        return replace(self, mode=mode, rules=(*self.rules, *added))

    def without(self, *rules: str) -> Network:
        """The same with all that these rules name closed, whatever opens it. Without ports a rule closes all ports.

        Raises SandboxError ``invalid_configuration``.
        """
        self._check_rules("closed")
        closed = tuple(Rule.parse(text, ALL_PORTS) for text in rules)
        added = tuple(rule for rule in closed if not any(known.covers(rule) for known in self.denied))
        left = tuple(rule for rule in self.rules if not any(one.covers(rule) for one in closed))
        return replace(self, rules=left, denied=(*self.denied, *added))

    def _check_rules(self, what: str) -> None:
        if self.mode == "bridge":
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"No host can be {what} by a rule here: the bridge is a network that no rule holds for.",
                "Use Network.open() or Network.allow(...) where rules are to hold.",
            )

    def address_of(self, name: str) -> Address | None:
        """The address that ``names`` has for a name (lower case, no dot at the end)."""
        return next((address for pinned, address in self.names if pinned == name), None)

    def describe(self, masked: Callable[[str], str] = str) -> str:
        """Two lines at most for the model; a person may have opened a host whose name holds a secret, which is ``masked``."""
        if self.mode == "none":
            return f"{ALONE} can be reached; downloads and DNS fail."
        if self.mode == "bridge":
            return "Network through the engine's bridge: the internet and services of the host network can be reached."
        named = _listed(self.rules, masked)
        closed = f" Not {_listed(self.denied, masked)}." if self.denied else ""
        how = "Through a proxy that the environment variables name (HTTP, HTTPS, SOCKS5); no DNS, UDP or ping." + closed
        if self.mode == "open":
            return f"Every public host can be reached{f', and {named}' if named else ''}. {how}"
        return f"{ONLY_HOSTS} {named or 'none'}. {how}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a connection is allowed; ``rule`` is the one that opens or closes it, ``why`` the reason of a refusal in words.

    ``kind`` is that of a refusal, ``about`` what it is about: of ``closed_by`` the rule that lifts the
    denial for this port, of ``closed_address`` the address.
    """

    allowed: bool
    rule: str = ""
    why: str = ""
    kind: RefusalKind = "no_rule"
    about: str = ""


def judge_host(network: Network, host: str, port: int) -> Verdict:
    """What can be said of ``host`` (a name or any spelling of an address) before it is resolved."""
    address = literal(host)
    if address is not None:
        return judge_address(network, None, address, port)
    name = ascii_name(host)
    if name is None:
        return Verdict(False, why="that is no name of a host, and no address that a rule could open", kind="no_host")
    if (denied := _denied(network, name, None, port)) is not None:
        return denied
    if network.mode in ("open", "bridge"):
        return Verdict(True, network.mode)
    rule = _rule_for_name(network, name, port)
    if rule is not None:
        return Verdict(True, rule.text)
    return Verdict(False, why=_no_rule(network, name, port))


def judge_address(network: Network, name: str | None, address: Address, port: int, own: bool = False) -> Verdict:
    """Whether ``address``, to which ``name`` resolved (None: it was given as such), may be dialled.

    ``own`` says that it is one of this host's own addresses: those are closed like loopback.
    """
    address = plain(address)
    if (denied := _denied(network, name, address, port)) is not None:
        return denied
    by_address = next((r for r in network.rules if r.opens_port(port) and r.opens_address(address)), None)
    by_name = _rule_for_name(network, name, port) if name is not None else None
    closed = "an address of the host itself" if own else closed_kind(address)
    if name is not None and network.address_of(name) == address:
        closed = None  # whoever wrote the policy has named it
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
    return Verdict(False, why=_no_rule(network, str(address), port))


def _listed(rules: tuple[Rule, ...], masked: Callable[[str], str]) -> str:
    more = f" and {len(rules) - MOST_LISTED} more" if len(rules) > MOST_LISTED else ""
    return ", ".join(masked(rule.text)[:MOST_RULE_CHARS] for rule in rules[:MOST_LISTED]) + more


def _lifted(denied: tuple[Rule, ...], text: str) -> tuple[Rule, ...]:
    """What stays denied where the rule ``text`` is allowed."""
    opened, every = Rule.parse(text), Rule.parse(text, ALL_PORTS)
    left: list[Rule] = []
    for rule in denied:
        if not rule.same_hosts(opened):
            left.append(rule)
        elif rule.ports != every.ports:  # else it is the same, in whatever words
            left += rule.less(opened.ports)
    return tuple(left)


def _denied(network: Network, name: str | None, address: Address | None, port: int) -> Verdict | None:
    spellings = () if address is None else carried(address)
    for rule in network.denied:
        named = (name is not None and rule.opens_name(name)) or any(map(rule.opens_address, spellings))
        everything = not rule.name and rule.network is None
        if rule.opens_port(port) and (named or everything):
            return Verdict(False, rule.text, f"the rule {rule.text} closes it", "closed_by", rule.at(port))
    return None


def _opens_private(network: Network, name: str, address: Address, port: int) -> bool:
    """Whether a rule lets ``name`` have this address, which is private in every form that it carries."""
    named = any(rule.private and rule.opens_port(port) and rule.opens_name(name) for rule in network.rules)
    return named and all(map(is_of_private_network, carried(address)))


def _rule_for_name(network: Network, name: str, port: int) -> Rule | None:
    return next((rule for rule in network.rules if rule.opens_port(port) and rule.opens_name(name)), None)


def _pinned(names: Mapping[str, str] | None) -> tuple[tuple[str, Address], ...]:
    check_types("Network", names=(names, Mapping | None))
    for name, address in (names or {}).items():
        check_types("Network", **{"a name in names": (name, str), f"the address of {value_text(name)}": (address, str)})
    return tuple(pinned_name(name, address) for name, address in (names or {}).items())


def _no_rule(network: Network, host: str, port: int) -> str:
    if network.mode == "none":
        return "this sandbox has no network"
    for rule in network.rules:
        if rule.name == host and rule.below:
            return f"{rule.text} opens the names below it, not {host} itself"
    near = ", ".join(rule.text for rule in network.rules if rule.opens_name(host))
    return f"port {port} of it is not opened by {near}" if near else "no rule opens it"
