"""The words of a refused connection: each kind names what would really open it."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from sandbox.limits import Limits
from sandbox.messages.network import refusal
from sandbox.network.allowance import Allowance
from sandbox.network.policy import Network, Verdict, judge_address, judge_host
from sandbox.readers import hint_for


def hint(host: str, port: int, **fields: Any) -> str:
    words = refusal({"host": host, "port": port, "why": "so", "certain": True, **fields})[1]
    assert "env." not in words  # a model has no Python of the host
    return hint_for("host", words)


@pytest.mark.parametrize(
    ("host", "port", "fields", "said"),
    [
        ("evil.test", 443, {}, "env.allow('evil.test')"),
        ("evil.test", 8080, {"kind": "no_rule"}, "env.allow('evil.test:8080')"),
        ("a.test", 443, {"kind": "closed_by", "about": "*.test"}, "lift that with env.allow('*.test')"),
        ("a.test", 443, {"kind": "closed_address", "about": "10.0.0.5"}, "env.allow('10.0.0.5:443')"),
        ("a.test", 80, {"kind": "closed_address", "about": "fd00::5"}, "env.allow('[fd00::5]:80')"),
        ("a.test", 80, {"kind": "limit", "about": "network_bytes"}, "Limits(network_bytes=...)"),
        ("a.test", 80, {"kind": "limit", "about": "network_connections"}, "Limits(network_connections=...)"),
        ("a.test", 80, {"kind": "limit"}, "Open fewer connections"),
        ("db", 80, {"kind": "service_port", "about": "5432"}, "Use port 5432"),
        ("two words", 80, {"kind": "no_host"}, "Give the name of a host"),
        ("fe80::1%eth0", 80, {"kind": "no_host"}, "an address without a zone"),
    ],
)
def test_the_hint_names_what_would_open_it(host: str, port: int, fields: dict[str, str], said: str) -> None:
    words = hint(host, port, **fields)
    assert said in words
    assert ("env.allow" in words) is ("env.allow" in said)


@pytest.mark.parametrize(
    ("network", "host", "address", "port"),
    [
        (Network.none(), "example.com", "93.184.216.34", 443),
        (Network.allow("*.example.com"), "example.com", "93.184.216.34", 8080),
        (Network.open().without("example.com"), "example.com", "93.184.216.34", 443),
        (Network.allow("example.com").without("example.com"), "example.com", "93.184.216.34", 8080),
        (Network.none().without("*"), "example.com", "93.184.216.34", 22),
        (Network.open().without("2606:4700::1111"), "2606:4700::1111", "2606:4700::1111", 22),
        (Network.open().without("*.example.com"), "www.example.com", "93.184.216.34", 443),
        (Network.open().without("93.184.216.0/24:443"), "example.com", "93.184.216.34", 443),
        (Network.allow("db.example.com:5432"), "db.example.com", "10.0.0.5", 5432),
        (Network.allow("db.example.com"), "db.example.com", "fd00::5", 443),
        (Network.open(), "10.0.0.5", "10.0.0.5", 443),
    ],
)
def test_what_the_hint_says_opens_it(network: Network, host: str, address: str, port: int) -> None:
    def judge(under: Network) -> Verdict:
        first = judge_host(under, host, port)
        one = ipaddress.ip_address(address)
        return judge_address(under, None if host == address else host, one, port) if first.allowed else first

    refused = judge(network)
    assert not refused.allowed
    said = hint(host, port, why=refused.why, kind=refused.kind, about=refused.about)
    named = said.partition("env.allow('")[2].partition("'")[0]
    assert judge(network.with_rules(named)).allowed, said


@pytest.mark.parametrize("host", ["fe80::1%eth0", "fe80::1%25eth0", "::1%lo", "10.0.0.1%1"])
@pytest.mark.parametrize("network", [Network.none(), Network.allow("a.test"), Network.open()])
def test_for_an_address_with_a_zone_no_rule_is_suggested_for_none_could_be_made(network: Network, host: str) -> None:
    refused = judge_host(network, host, 8080)
    assert not refused.allowed
    said = hint(host, 8080, why=refused.why, kind=refused.kind, about=refused.about)
    assert "allow(" not in said
    assert "without a zone" in said


def test_what_a_limit_ends_names_the_limit() -> None:
    allowance = Allowance(Limits(network_bytes=10, network_connections=2))
    assert allowance.problem(1) is None
    assert (allowance.problem(2) or ("", ""))[1] == "network_connections"
    allowance.sent(10)
    assert (allowance.problem(1) or ("", ""))[1] == "network_bytes"


def test_what_a_model_is_told_of_the_rules_is_bounded() -> None:
    network = Network.allow(*(f"host{number}.example.com" for number in range(400)))
    assert "host19.example.com and 380 more." in network.describe()
    assert "host20." not in network.describe()
    closed = Network.open().without(*(f"{'x' * 60}.{'y' * 60}{number}.example.com" for number in range(21)))
    assert " and 1 more." in closed.describe()
    assert len(closed.describe()) < 3000
