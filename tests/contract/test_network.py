"""The policy of a sandbox as its callers read and change it: the same for every environment that has one."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

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


def test_changes_at_the_same_time_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Network.without

    def slow(network: Network, *rules: str) -> Network:
        time.sleep(0.002)  # between what was read and what is written
        return without(network, *rules)

    monkeypatch.setattr(Network, "without", slow)
    env = FakeEnvironment(network=Network.open())

    def change(first: int) -> None:
        for number in range(first, first + 10):
            env.deny(f"{number}.example.com")
            env.allow(f"{number}.example.org")

    threads = [threading.Thread(target=change, args=(first,)) for first in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {rule.text for rule in env.network.denied} == {f"{number}.example.com" for number in range(40)}
    assert {rule.text for rule in env.network.rules} == {f"{number}.example.org" for number in range(40)}


@pytest.mark.parametrize("network", ["none", "open", ("example.com",), 7])
def test_what_is_no_network_is_refused_with_words(network: Any) -> None:
    env = FakeEnvironment()
    for change in (lambda: FakeEnvironment(network=network), lambda: setattr(env, "network", network)):
        with pytest.raises(SandboxError) as refused:
            change()
        assert refused.value.code is ErrorCode.invalid_configuration
        assert "Network.open()" in str(refused.value)
    assert env.network == Network.none()


def test_rules_in_a_list_are_refused_with_words() -> None:
    env = FakeEnvironment()
    for change in (env.allow, env.deny, Network.allow):
        with pytest.raises(SandboxError) as refused:
            change(["example.com"])  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.invalid_configuration
        assert "Give each rule by itself" in str(refused.value)
