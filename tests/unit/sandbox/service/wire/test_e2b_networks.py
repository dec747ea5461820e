"""The rules of a network in the words of E2B, under each ceiling."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.docker.spec import SandboxSpec
from sandbox.network.policy import judge_host
from sandbox.service.http.problems import Problem
from sandbox.service.templates.templates import Found
from sandbox.service.tenants.ceiling import check_network
from sandbox.service.tenants.rules import Ceiling
from sandbox.service.wire.e2b.bodies import NewSandbox

PUBLIC, NAMED, NONE = Ceiling(), Ceiling(network="named", hosts=("*.example.com", "example.org")), Ceiling(network="none")
BASE = Found("base", "gamebox/e2b")


def _opens(asked: dict[str, Any], ceiling: Ceiling, host: str, port: int = 443, version: int = 2) -> bool:
    body = NewSandbox.model_validate({"templateID": "base", **asked}).body(version, ceiling, BASE)
    network = SandboxSpec.from_data({"network": body.network.data()}).network
    check_network(ceiling, network)
    return judge_host(network, host, port).allowed


@pytest.mark.parametrize(
    ("network", "host", "port", "is_open"),
    [
        ({"denyOut": ["203.0.114.0/24"], "allowOut": ["203.0.114.9"]}, "203.0.114.9", 5432, True),
        ({"denyOut": ["203.0.114.0/24"], "allowOut": ["203.0.114.9"]}, "203.0.114.8", 443, False),
        ({"denyOut": ["203.0.114.9"], "allowOut": ["203.0.114.0/24"]}, "203.0.114.9", 443, True),
        ({"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1", "2606:4700::/32"]}, "1.1.1.1", 53, True),
        ({"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1", "2606:4700::/32"]}, "2606:4700::1", 53, True),
        ({"denyOut": ["0.0.0.0/0"], "allowOut": ["*.example.com"]}, "a.example.com", 443, True),
        ({"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1"]}, "8.8.8.8", 443, False),
        ({"allowOut": ["1.1.1.1"]}, "8.8.8.8", 443, True),
    ],
)
def test_what_is_allowed_beats_what_is_denied(network: dict[str, Any], host: str, port: int, is_open: bool) -> None:
    assert _opens({"network": network}, PUBLIC, host, port) is is_open


def test_named_hosts_stay_denied_unless_they_are_allowed() -> None:
    denied = {"denyOut": ["*.example.com"]}
    assert not _opens({"network": denied}, NAMED, "a.example.com")
    assert _opens({"network": {**denied, "allowOut": ["a.example.com"]}}, NAMED, "a.example.com")
    assert not _opens({"network": {**denied, "allowOut": ["a.example.com"]}}, NAMED, "b.example.com")
    assert _opens({}, NAMED, "example.org")


@pytest.mark.parametrize("ceiling", [NAMED, NONE])
@pytest.mark.parametrize(
    "asked", [{"allow_internet_access": True}, {"network": {"allowOut": ["1.1.1.1"]}}, {"network": {"allow_internet_access": True}}]
)
def test_what_the_operator_does_not_allow_is_refused_if_it_is_asked_for(ceiling: Ceiling, asked: dict[str, Any]) -> None:
    with pytest.raises(Problem) as refused:
        _opens(asked, ceiling, "example.org")
    assert (refused.value.status, refused.value.code.value) == (403, "forbidden_by_operator")
    assert refused.value.hint


@pytest.mark.parametrize("ceiling", [NAMED, NONE])
def test_clients_that_always_ask_for_the_internet_get_what_is_allowed(ceiling: Ceiling) -> None:
    asked = {"allow_internet_access": True}
    assert _opens(asked, PUBLIC, "8.8.8.8", version=1)
    assert _opens(asked, ceiling, "example.org", version=1) is (ceiling is NAMED)
    assert not _opens({"allow_internet_access": False}, PUBLIC, "8.8.8.8", version=1)
