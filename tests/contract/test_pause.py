"""Pause and resume where there is nothing to stop, and by coroutines."""

from __future__ import annotations

import asyncio

import pytest

from sandbox import LocalEnvironment
from sandbox.aio import AsyncEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import FakeEnvironment


def test_the_fake_is_paused_as_a_sandbox_is() -> None:
    env = FakeEnvironment({"a": "x"})
    env.pause()
    for answer in (env.read("a"), env.run("ls"), env.upload(b"x", "b")):
        assert not answer.ok
        assert answer.code is ErrorCode.sandbox_paused
        assert answer.effects == "none"
    env.resume()
    assert env.read("a").unwrap().content == "x"


def test_by_coroutines() -> None:
    async def use() -> None:
        async with AsyncEnvironment(FakeEnvironment({"a": "x"})) as env:
            await env.pause()
            assert not (await env.read("a")).ok
            await env.resume()
            assert (await env.read("a")).ok
            await env.remove()

    asyncio.run(use())


def test_a_local_one_says_that_it_cannot_be_paused() -> None:
    with LocalEnvironment() as env:
        with pytest.raises(SandboxError) as refused:
            env.pause()
        assert refused.value.code is ErrorCode.operation_not_supported
        assert env.run("echo on").unwrap().output == "on\n"
        env.resume()
