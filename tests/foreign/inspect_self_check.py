"""The self_check of inspect_ai, run on the adapter: inspect's own recipe is a star import and a fixture of this name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandbox.integrations.inspect_ai import GameboxSandboxEnvironment


@pytest.fixture
async def sandbox_env() -> AsyncIterator[GameboxSandboxEnvironment]:
    made = await GameboxSandboxEnvironment.sample_init("self_check", None, {})
    env = made["default"].as_type(GameboxSandboxEnvironment)
    # Without ps the checks that nothing is left running would pass whatever is.
    assert (await env.exec(["ps"])).success
    yield env
    await GameboxSandboxEnvironment.sample_cleanup("self_check", None, made, interrupted=False)
