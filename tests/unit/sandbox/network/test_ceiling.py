"""The ceiling of a network: what no rule opens, however it is written, and whatever a resolver says."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import socket
from typing import Any

import pytest

from sandbox.environment.parts.network import SandboxNetwork
from sandbox.errors import SandboxError
from sandbox.limits import Limits
from sandbox.network import ceiling as ceilings
from sandbox.network.addresses import closed_kind
from sandbox.network.ceiling import Ceiling, CeilingError
from sandbox.network.dialling import RefusedError, UnreachableError, dial, route
from sandbox.network.policy import Network
from sandbox.network.rules import Rule

PUBLIC = Ceiling.public()
# Some addresses in these lead to public ones.
EMBEDDING = ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/23", "::/32")


class Hangs(asyncio.Protocol):
    """Hangs up at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


# What a tenant writes to open everything that it can.
GREEDY = Network.open("*:*", "0.0.0.0/0:*", "[::/0]:*")


def own_address() -> str:
    """Return an address of this host beside loopback, or loopback if there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    "rule",
    [
        "127.0.0.1", "127.0.0.1:8080", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "127.0.0.1.",
        "[::1]", "[::]", "[::ffff:127.0.0.1]:80", "[::ffff:10.0.0.1]", "[::127.0.0.1]", "[64:ff9b::10.0.0.1]", "[2002:7f00:1::]",
        "[64:ff9b:1::a00:1]", "[2001:0:a00:1::f5ff:fffe]", "10.0.0.0/8", "10.1.2.3", "172.16.0.0/12:*", "192.168.1.0/24",
        "100.64.0.1", "169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "169.254.0.0/16", "[fe80::1]", "[fe80::/10]",
        "224.0.0.1", "[ff02::1]", "240.0.0.1", "255.255.255.255", "8.0.0.0/5", "0.0.0.0/1", "[2000::/3]", "[::/1]", "[fc00::/7]",
        "[::ffff:0.0.0.0/100]", "localhost", "LOCALHOST.:22", "*.localhost", "metadata.google.internal", "db", "printer.local",
        "*.internal", "router.home.arpa",
    ],
)  # fmt: skip
def test_a_rule_that_names_what_is_not_public_is_refused_by_its_text(rule: str) -> None:
    with pytest.raises(CeilingError) as caught:
        PUBLIC.check(Network.allow("example.com", rule))
    assert caught.value.asked == rule
    assert repr(rule) in caught.value.message


@pytest.mark.parametrize(
    "rule",
    ["example.com", "*.example.org:443", "*", "*:*", "0.0.0.0/0", "[::/0]:*", "93.184.216.34", "8.8.8.0/24:53", "[2606:4700::/32]",
     "[64:ff9b::808:808]", "local.example.com", "internal.example.com"],
)  # fmt: skip
def test_a_rule_that_names_what_is_public_or_everything_is_taken(rule: str) -> None:
    PUBLIC.check(Network.allow(rule))
    PUBLIC.check(Network.none().without(rule))


def test_this_hosts_own_address_is_refused() -> None:
    with pytest.raises(CeilingError):
        PUBLIC.check(Network.allow(own_address()))


def test_modes_pins_and_private_names_are_bounded_too() -> None:
    for network in (
        Network.bridge(),
        Network.allow("db.example.com", names={"db.example.com": "10.0.0.1"}),
        Network.allow("db.example.com", private=True),
    ):
        with pytest.raises(CeilingError):
            PUBLIC.check(network)
    PUBLIC.check(Network.allow("db.example.com", names={"db.example.com": "93.184.216.34"}))


def test_the_ranges_that_are_refused_are_those_of_single_addresses() -> None:
    """A network is refused by its ranges and an address by its kind: both know the same addresses."""
    choose = random.Random(15)
    for network in ceilings._CLOSED:
        if str(network) in EMBEDDING:
            continue
        for _ in range(20):
            address = network[choose.randrange(network.num_addresses)]
            assert closed_kind(address) is not None, address
    for _ in range(5000):
        for address in (ipaddress.IPv4Address(choose.getrandbits(32)), ipaddress.IPv6Address(choose.getrandbits(128))):
            # Python calls much of what no registry has given away reserved; nothing is there.
            if closed_kind(address) is not None and (address.version == 4 or address in ipaddress.ip_network("2000::/3")):
                assert any(address in each for each in ceilings._CLOSED if each.version == address.version), address


def test_the_operator_may_open_networks_and_close_hosts() -> None:
    ceiling = Ceiling.public("10.1.2.0/24:5432", denied=["*:25", "*.bad.example"])
    ceiling.check(Network.allow("10.1.2.3:5432", "10.1.2.0/25:5432", "db.internal:5432"))
    for rule in ("10.1.2.3:22", "10.1.0.0/16:5432", "10.1.3.1:5432", "*:25", "mail.example.com:25", "a.bad.example"):
        with pytest.raises(CeilingError):
            ceiling.check(Network.allow(rule))
    with pytest.raises(SandboxError, match="not an address or a network"):
        Ceiling.public("example.com")


def test_only_the_single_address_opens_this_host_and_never_the_services_port() -> None:
    address = ipaddress.ip_address(own_address())
    wide, single = Ceiling.public("0.0.0.0/0:*"), Ceiling.public(f"{address}:*", own_ports=[8080])
    assert wide.judge_address(None, address, 80) is not None
    assert wide.judge_address(None, ipaddress.ip_address("127.0.0.2"), 80) is not None
    assert single.judge_address(None, address, 80) is None
    assert single.judge_address(None, address, 8080) is not None


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """A resolver that answers each look-up of a name with the next list of addresses."""
    answers: dict[str, list[list[str]]] = {}

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if not answers.get(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = answers[host].pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return answers


def refusal(host: str, port: int = 80, ceiling: Ceiling = PUBLIC, network: Network = GREEDY) -> str:
    """Return why a connection is refused."""
    with pytest.raises(RefusedError) as caught:
        asyncio.run(route(network, host, port, ceiling))
    assert caught.value.kind == "ceiling"
    return caught.value.why


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "127.0.0.1.", "[::1]", "::", "[::]",
        "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "64:ff9b:1::7f00:1", "169.254.169.254",
        "fd00:ec2::254",
        "168.63.129.16", "10.0.0.1", "100.100.100.200", "192.0.0.192", "224.0.0.1", "255.255.255.255", "::5efe:10.0.0.1",
        "2001:0:a00:1::f5ff:fffe",
    ],
)  # fmt: skip
def test_no_spelling_of_a_closed_address_is_dialled_whatever_the_rules_say(host: str) -> None:
    assert "the operator opens public addresses only" in refusal(host)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "db", "metadata.google.internal", "x.local."])
def test_a_name_of_the_hosts_own_network_is_not_even_looked_up(host: str, resolver: dict[str, list[list[str]]]) -> None:
    resolver[host.lower().removesuffix(".")] = [["93.184.216.34"]]
    assert "has no public address" in refusal(host)
    assert sum(map(len, resolver.values())) == 1


def test_a_name_with_a_closed_address_is_refused_as_one_that_does_not_exist(resolver: dict[str, list[list[str]]]) -> None:
    """Who may write rules must not learn the names of this host's network."""
    resolver["db.corp.example"] = [["10.1.2.3"], ["10.1.2.3", "169.254.169.254"]]
    why = refusal("db.corp.example")
    assert "10.1.2.3" not in why
    assert why.replace("db.corp", "no.corp") == refusal("no.corp.example")


def test_the_address_that_was_judged_is_the_one_that_is_dialled(resolver: dict[str, list[list[str]]]) -> None:
    """The second answer of a resolver that flips is never asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ceiling = Ceiling.public(f"127.0.0.1:{port}")
        resolver["flip.example"] = [["127.0.0.1"], ["10.0.0.1"]]

        async def connect() -> str:
            way = await route(Network.allow(f"flip.example:{port}", f"127.0.0.1:{port}"), "flip.example", port, ceiling)
            _, address = await dial(way, "flip.example", port, Hangs)
            await asyncio.sleep(0)
            return address

        assert asyncio.run(connect()) == "127.0.0.1"
    resolver["turn.example"] = [["93.184.216.34"], ["127.0.0.1"]]
    assert [str(each) for each in asyncio.run(route(GREEDY, "turn.example", 80, PUBLIC)).addresses] == ["93.184.216.34"]
    assert "no public address" in refusal("turn.example")


def test_of_several_addresses_only_the_public_ones_are_dialled(resolver: dict[str, list[list[str]]]) -> None:
    resolver["both.example"] = [["127.0.0.1", "93.184.216.34", "169.254.169.254"]]
    way = asyncio.run(route(GREEDY, "both.example", 80, PUBLIC))
    assert [str(each) for each in way.addresses] == ["93.184.216.34"]


def test_a_proxy_of_the_host_gets_no_name_that_was_not_judged(
    resolver: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert "no public address" in refusal("intranet.example")
    assert asyncio.run(route(GREEDY, "intranet.example", 80)).proxy is not None  # without a ceiling it gets the name

    def fail(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UnreachableError, match="does not resolve"):
        asyncio.run(route(GREEDY, "intranet.example", 80, PUBLIC))


def test_a_policy_that_comes_later_is_bounded_and_denying_is_always_possible() -> None:
    network = SandboxNetwork("E", Network.allow("10.0.0.1"), Limits(), str, os.getpid())
    network.lower(PUBLIC)
    for change in (lambda: network.change(Network.allow("10.0.0.2")), lambda: network.allow("127.0.0.1")):
        with pytest.raises(CeilingError):
            change()
    assert network.policy.rules == (Rule.parse("10.0.0.1"),)
    assert network.deny("10.0.0.1").rules == ()
    bridged = SandboxNetwork("E", Network.bridge(), Limits(), str, os.getpid())
    with pytest.raises(CeilingError):
        bridged.lower(PUBLIC)
