"""The policy of a sandbox as its callers read and change it: the same for every environment that has one."""

from __future__ import annotations

import asyncio

import pytest

from sandbox import LocalEnvironment, Network
from sandbox.aio import AsyncEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import FakeEnvironment


def test_rules_are_read_and_changed() -> None:
    env = FakeEnvironment(network=Network.allow("example.com"))
    assert env.allow("*.example.org:443") == env.network
    assert [rule.text for rule in env.network.rules] == ["example.com", "*.example.org:443"]
    env.deny("example.com")
    assert [rule.text for rule in env.network.rules] == ["*.example.org:443"]
    assert [rule.text for rule in env.network.denied] == ["example.com"]
    env.allow("example.com")
    assert env.network.denied == ()
    env.network = Network.open()
    assert "Every public host can be reached" in env.describe()["network"]
    with pytest.raises(SandboxError) as refused:
        env.allow("https://example.com/")
    assert refused.value.code is ErrorCode.invalid_configuration
    assert env.network == Network.open()


def test_what_is_denied_stays_closed_whatever_opens_it() -> None:
    network = Network.open("10.0.0.0/8:*").without("10.0.0.1", "*.example.com:443")
    assert "Not 10.0.0.1, *.example.com:443." in network.describe()
    assert [rule.ports for rule in network.denied] == [((1, 65535),), ((443, 443),)]


def test_coroutines_change_them_as_well() -> None:
    async def change(env: AsyncEnvironment) -> Network:
        await env.allow("example.com")
        await env.deny("example.org")
        assert env.connections == ()
        return env.network

    network = asyncio.run(change(AsyncEnvironment(FakeEnvironment())))
    assert [rule.text for rule in (*network.rules, *network.denied)] == ["example.com", "example.org"]


def test_where_nothing_can_be_restricted_that_is_said() -> None:
    env = LocalEnvironment()
    with pytest.raises(SandboxError) as refused:
        env.network = Network.none()
    assert refused.value.code is ErrorCode.operation_not_supported
