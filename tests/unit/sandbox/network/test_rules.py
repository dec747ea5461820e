"""Rules of a network: what each opens, every spelling of an address, and what is wrong with a bad one."""

from __future__ import annotations

import ipaddress

import pytest

from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError
from sandbox.network.addresses import closed_kind, is_host_address, parse_address
from sandbox.network.policy import Network, judge_address, judge_host
from sandbox.network.rules import Rule, ascii_name, canonical_host, is_host, rule_for

RULES = (
    "example.com",
    "*.example.org:443",
    "10.1.2.0/24:5432",
    "[2001:db8::1]:8080",
    "db.internal:5432",
    "10.9.9.9:5432",
)


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("example.com", 443, True), ("Example.COM.", 80, True), ("example.com", 22, False), ("www.example.com", 443, False),
        ("a.example.org", 443, True), ("a.b.example.org", 443, True), ("example.org", 443, False), ("a.example.org", 80, False),
        ("evilexample.org", 443, False), ("a.example.org.evil.test", 443, False), ("example.com.evil.test", 443, False),
        ("10.1.2.3", 5432, True), ("10.1.2.3", 443, False), ("10.1.3.3", 5432, False), ("0x0a010203", 5432, True),
        ("2001:db8::1", 8080, True), ("[2001:db8::1]", 8080, True), ("2001:db8::2", 8080, False),
        ("::ffff:10.1.2.3", 5432, True), ("93.184.216.34", 443, False), ("", 443, False), ("exa mple.com", 443, False),
        ("example.com\0.evil.test", 443, False), ("example.com/", 443, False), ("user@example.com", 443, False),
    ],
)  # fmt: skip
def test_a_rule_opens_what_it_names_and_nothing_else(host: str, port: int, allowed: bool) -> None:
    verdict = judge_host(Network.allow(*RULES), host, port)
    assert verdict.allowed is allowed
    assert bool(verdict.rule) is allowed
    assert bool(verdict.why) is not allowed


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("0x7f000001", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"), ("0177.0.0.1", "127.0.0.1"), ("127.0.0.1.", "127.0.0.1"), ("0", "0.0.0.0"),
        ("[::1]", "::1"), ("::1", "::1"), ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
    ],
)  # fmt: skip
def test_every_spelling_of_an_address_is_read_as_resolvers_read_it(host: str, address: str) -> None:
    assert parse_address(host) == ipaddress.ip_address(address)
    assert not judge_host(Network.open(), host, 80).allowed


@pytest.mark.parametrize(
    "host", ["::1%eth0", "::%x/0", "[::%x/0]", "2606:4700::%\n\x1b[2Jpypi.example", "fe80::1%", "fe80::%x/64"]
)
def test_an_address_with_a_zone_is_none(host: str) -> None:
    assert parse_address(host) is None
    verdict = judge_host(Network.open(), host, 80)
    assert not verdict.allowed
    assert verdict.why.isprintable()
    for text in (host, f"[{host.strip('[]')}]:80"):
        with pytest.raises(SandboxError, match="is not a rule of a network"):
            Rule.parse(text)
    with pytest.raises(SandboxError, match="is not a rule of a network"):
        rule_for(host, 80)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("Example.COM.", "example.com"), ("0x7f.1", "127.0.0.1"), ("[::FFFF:127.0.0.1]", "127.0.0.1"), ("[0:0::1]", "::1"),
        ("b\u00fccher.example", "xn--bcher-kva.example"), ("::%\n\x1b[2Jx", "::%\\n\\x1b[2Jx"), ("a\u2028b", "a\\u2028b"),
    ],
)  # fmt: skip
def test_a_host_has_one_spelling_on_one_line(host: str, shown: str) -> None:
    assert canonical_host(host) == shown
    assert is_host(host) == is_host(shown)


@pytest.mark.parametrize("host", ["example.com", "127.1", "::ffff:10.1.2.3", "2001:db8::1"])
def test_the_rule_for_one_host_opens_it_alone(host: str) -> None:
    rule = Rule.parse(rule_for(host, 8080))
    assert rule.ports == ((8080, 8080),)
    assert rule.network is None or rule.network.num_addresses == 1
    assert judge_host(Network.allow(rule.text), host, 8080).allowed


@pytest.mark.parametrize(
    "host",
    [
        "1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::1.2.3.4", "64:ff9b:1::1.2.3.4", "64:ff9b:1:102:3:400::", "64:ff9b:1:1:2:304::",
        "64:ff9b:1:0:1:203:400:0", "2002:102:304::1", "::1.2.3.4", "::ffff:0:1.2.3.4", "2606:4700::5efe:1.2.3.4",
        "2606:4700::200:5efe:1.2.3.4",
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["1.2.3.4", "1.2.3.0/24", "::ffff:1.2.3.0/120"])
def test_what_is_denied_is_so_in_every_spelling(rule: str, host: str) -> None:
    assert judge_host(Network.open(), "1.2.3.4", 443).allowed
    verdict = judge_host(Network.open("*").without(rule), host, 443)
    assert not verdict.allowed
    assert verdict.rule == rule
    assert judge_host(Network.open().without(rule), "1.2.5.4", 443).allowed


@pytest.mark.parametrize("host", ["example.com", "1.2.3.4.5", "999999999999", "a1", "127.0.0.1.example.com", "::g"])
def test_a_name_is_no_address(host: str) -> None:
    assert parse_address(host) is None


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.53", "loopback"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"), ("::127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"), ("2002:7f00:1::", "loopback"), ("0.0.0.0", "unspecified"), ("::", "unspecified"),
        ("169.254.169.254", "metadata"), ("168.63.129.16", "metadata"), ("::ffff:169.254.169.254", "metadata"),
        ("fd00:ec2::254", "private"), ("169.254.1.1", "link-local"), ("fe80::1", "link-local"), ("10.0.0.1", "private"),
        ("192.168.1.1", "private"), ("172.16.0.1", "private"), ("2002:0a00:0001::", "private"), ("100.100.100.200", "not public"),
        ("192.0.0.192", ""), ("224.0.0.1", "multicast"), ("ff02::1", "multicast"), ("255.255.255.255", ""), ("198.18.0.1", ""),
        ("fec0::1", ""), ("feff::1", ""), ("3fff::1", ""), ("5f00::1", ""), ("::ffff:0:7f00:1", "loopback"),
        ("::ffff:0:a9fe:a9fe", "metadata"), ("::ffff:0:a00:1", "private"),
    ],
)  # fmt: skip
def test_what_is_not_public_is_closed_even_under_open(address: str, kind: str) -> None:
    one = ipaddress.ip_address(address)
    found = closed_kind(one)
    assert found is not None
    assert kind in found
    assert not judge_address(Network.open(), "rebound.test", one, 80).allowed
    assert not judge_address(Network.open(), None, one, 80).allowed
    assert not judge_address(Network.allow("rebound.test", "*"), "rebound.test", one, 80).allowed


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "::ffff:0:808:808"]
)
def test_public_addresses_are_open(address: str) -> None:
    assert closed_kind(ipaddress.ip_address(address)) is None
    assert judge_address(Network.open(), None, ipaddress.ip_address(address), 53).allowed


def test_a_name_that_resolves_to_a_closed_address_needs_that_address_named() -> None:
    inside = ipaddress.ip_address("10.9.9.9")
    network = Network.allow("db.internal:5432")
    refused = judge_address(network, "db.internal", inside, 5432)
    assert not refused.allowed
    assert "10.9.9.9" in refused.why
    assert judge_address(network.with_rules("10.9.9.9:5432"), "db.internal", inside, 5432).allowed
    # The address alone does not open every name that points to it.
    assert not judge_address(Network.allow("10.9.9.9:5432"), "other.test", inside, 5432).allowed


def test_the_hosts_own_addresses_are_closed_like_loopback() -> None:
    public = ipaddress.ip_address("8.8.8.8")
    assert not judge_address(Network.open(), "x.test", public, 80, own=True).allowed
    assert is_host_address(ipaddress.ip_address("127.0.0.1"))
    assert not is_host_address(ipaddress.ip_address("192.0.2.1"))


def test_none_refuses_everything_with_words() -> None:
    for host in ("example.com", "8.8.8.8", "127.0.0.1"):
        verdict = judge_host(Network.none(), host, 443)
        assert not verdict.allowed
        assert verdict.why == "this sandbox has no network"


def test_the_reason_says_what_is_near() -> None:
    network = Network.allow(*RULES)
    assert judge_host(network, "example.com", 22).why == "port 22 of it is not opened by example.com"
    assert "names below it" in judge_host(network, "example.org", 443).why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://example.com/x", "Write 'example.com' instead"), ("/etc/hosts", "a path"), ("example.com:0", "'0' is not a port"),
        ("example.com:99999", "'99999'"), ("example.com:9-8", "'9-8'"), ("*example.com", "a host name"),
        ("10.0.0.1/8", "host bits"),
        ("", "a host name"), ("two words", "a host name"), ("a.*.example.com", "a host name"), ("-a.example", "a host name"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused_with_its_text(text: str, said: str) -> None:
    with pytest.raises(SandboxError) as caught:
        Network.allow(text)
    assert caught.value.code == "invalid_configuration"
    assert said in str(caught.value)
    assert repr(text) in caught.value.message or text.partition(":")[0] in caught.value.message


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("example.com", ((80, 80), (443, 443))), ("example.com:*", ((1, 65535),)), ("example.com:8000-8100", ((8000, 8100),)),
        ("[2001:db8::/32]:443", ((443, 443),)), ("2001:db8::1", ((80, 80), (443, 443))), ("*:443", ((443, 443),)),
    ],
)  # fmt: skip
def test_ports_of_a_rule(text: str, ports: tuple[tuple[int, int], ...]) -> None:
    assert Rule.parse(text).ports == ports


def test_names_in_other_alphabets_are_compared_as_resolvers_see_them() -> None:
    assert ascii_name("BÜCHER.example") == "xn--bcher-kva.example"
    assert judge_host(Network.allow("bücher.example"), "xn--bcher-kva.example", 443).allowed


def test_describe_is_two_lines_at_most() -> None:
    for network in (Network.none(), Network.bridge(), Network.open(), Network.allow(*RULES)):
        assert len(network.describe().splitlines()) <= 2
    assert "*.example.org:443" in Network.allow(*RULES).describe()


def test_names_are_looked_up_before_any_resolver_and_open_nothing_by_themselves() -> None:
    network = Network.allow(
        "index.example.com:8443", names={"Index.example.com.": "127.1", "other.example.com": "10.0.0.1"}
    )
    pinned = ipaddress.ip_address("127.0.0.1")
    assert network.address_of("index.example.com") == pinned
    assert judge_address(network, "index.example.com", pinned, 8443).allowed
    assert not judge_address(network, "index.example.com", pinned, 22).allowed
    assert not judge_address(network, "index.example.com", ipaddress.ip_address("127.0.0.2"), 8443).allowed
    assert not judge_host(network, "127.0.0.1", 8443).allowed
    assert not judge_host(network, "other.example.com", 8443).allowed
    assert network.with_rules("x.example.com").names == network.names


@pytest.mark.parametrize(
    "names", [{"two words": "10.0.0.1"}, {"*.example.com": "10.0.0.1"}, {"x.example.com": "y.example.com"}]
)
def test_bad_names_are_refused_with_their_text(names: dict[str, str]) -> None:
    with pytest.raises(SandboxError) as caught:
        Network.open(names=names)
    assert caught.value.code == "invalid_configuration"
    assert all(repr(word) in caught.value.message for pair in names.items() for word in pair)


def test_what_is_denied_stays_closed_whatever_opens_it() -> None:
    network = Network.open("10.0.0.0/8:*").without("10.0.0.1", "*.example.com:443", "203.0.114.0/24")
    for host, port in (("10.0.0.1", 5432), ("www.example.com", 443), ("203.0.114.9", 80), ("0x0a000001", 80)):
        verdict = judge_host(network, host, port)
        assert not verdict.allowed, host
        assert "closes it" in verdict.why
    for host, port in (("10.0.0.2", 5432), ("www.example.com", 80), ("example.com", 443)):
        assert judge_host(network, host, port).allowed, host
    # A name that resolves to what is denied is closed too.
    address = ipaddress.ip_address("203.0.114.9")
    assert not judge_address(network, "example.org", address, 443).allowed


def test_what_is_exempt_is_not_denied_and_not_opened_either() -> None:
    exempt = ["203.0.114.9:443", "www.example.com", "10.0.0.1"]
    data = {"mode": "open", "denied": ["203.0.114.0/24", "*.example.com"], "exempt": exempt}
    network = SandboxSpec.from_data({"network": data}).network
    assert SandboxSpec.from_data(SandboxSpec(network=network).to_data()).network == network
    for host, port, is_open in (
        *(("203.0.114.9", 443, True), ("203.0.114.9", 80, False), ("203.0.114.8", 443, False)),
        *(("www.example.com", 22, True), ("db.example.com", 443, False), ("10.0.0.1", 80, False), ("8.8.8.8", 53, True)),
    ):
        assert judge_host(network, host, port).allowed == is_open, (host, port)
    denied = ipaddress.ip_address("203.0.114.8")
    assert judge_address(network, "www.example.com", denied, 443).allowed, "its name is exempt"
    assert not judge_address(network, "www.example.com", ipaddress.ip_address("10.0.0.1"), 443).allowed, "it is private"
    assert not judge_host(network.without("www.example.com"), "www.example.com", 443).allowed, "the last word holds"


@pytest.mark.parametrize(
    ("denied", "allowed", "host", "open_ports", "closed_ports"),
    [
        ("example.com", "Example.com", "example.com", (80, 443), (22,)),
        ("example.com", "example.com:443", "example.com", (443,), (80, 22, 444)),
        ("example.com:8000-8100", "example.com:8050", "example.com", (8050,), (8049, 8051)),
        ("example.com:22", "example.com", "example.com", (80, 443), (22,)),
        ("127.0.0.1", "127.1:8000", "127.0.0.1", (8000,), (80, 8001)),
        ("[2001:db8::/32]", "[2001:db8::/32]:443", "2001:db8::7", (443,), (80,)),
        ("*", "*:443", "example.org", (443,), (80, 22)),
        ("*.example.com", "www.example.com", "www.example.com", (), (80, 443)),
        ("www.example.com", "*.example.com", "www.example.com", (), (80, 443)),
    ],
)
def test_what_is_allowed_after_it_was_denied_is_open_however_it_is_written(
    denied: str, allowed: str, host: str, open_ports: tuple[int, ...], closed_ports: tuple[int, ...]
) -> None:
    network = Network.none().without(denied).with_rules(allowed)
    assert [port for port in (*open_ports, *closed_ports) if judge_host(network, host, port).allowed] == [*open_ports]
    # What is left of a denial is written as rules that say the same.
    for rule in network.denied:
        assert rule.covers(Rule.parse(rule.text, ((1, 65535),)))
    # In an open network nothing but what was named is open again.
    opened = Network.open().without(denied).with_rules(allowed)
    if denied != "example.com" or allowed != "Example.com":  # the same words lift the whole denial
        assert not any(judge_host(opened, host, port).allowed for port in closed_ports)


def test_what_is_denied_takes_the_rules_of_the_same_host_away_however_they_are_written() -> None:
    network = Network.allow("Example.com", "example.com:8080", "example.org").without("example.com")
    assert [rule.text for rule in network.rules] == ["example.org"]
    assert [rule.text for rule in network.without("EXAMPLE.com:22").denied] == ["example.com"]


def test_what_is_granted_lifts_no_denial() -> None:
    network = Network.none().without("example.com:443").granted("example.com:443")
    assert not judge_host(network, "example.com", 443).allowed


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True), ("192.168.0.9", True), ("fd12::1", True), ("93.184.216.34", True), ("127.0.0.1", False),
        ("169.254.169.254", False), ("169.254.7.7", False), ("::1", False), ("fd00:ec2::254", False), ("0.0.0.0", False),
        ("64:ff9b::7f00:1", False),
        ("192.0.0.192", False), ("100.100.100.200", False), ("::ffff:127.0.0.1", False), ("::ffff:10.1.2.3", True),
        ("224.0.0.1", False),
    ],
)  # fmt: skip
def test_names_that_may_have_private_addresses(address: str, allowed: bool) -> None:
    """UX 4: the package index of a company is always at a private address, and each address had to be named."""
    network = Network.allow("packages.example.com", "*.corp.example.com:8443", private=True).with_rules("other.example.com")
    found = ipaddress.ip_address(address)
    for name, port in (("packages.example.com", 443), ("a.corp.example.com", 8443)):
        assert judge_address(network, name, found, port).allowed is allowed
        assert not judge_address(network, name, found, port, own=True).allowed
        assert not judge_address(network, name, found, 22).allowed
    other = judge_address(network, "other.example.com", found, 443)
    assert other.allowed is (address == "93.184.216.34")
    assert not judge_address(network, None, found, 443).allowed
    assert not judge_address(network.without("packages.example.com"), "packages.example.com", found, 443).allowed


def test_private_is_for_hosts_that_are_named() -> None:
    with pytest.raises(SandboxError, match="names every host"):
        Network.allow("*", private=True)
