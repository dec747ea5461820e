"""The four drivers, for tests of what must be the same under each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agent import Agent
from agent.core.loop.layers import Layer
from agent.core.loop.streaming import RunFinished
from agent.core.run import AgentRun


def streamed(agent: Agent, layers: Sequence[Layer] | None) -> AgentRun:
    *_, last = agent.stream("t", layers=layers)
    assert isinstance(last, RunFinished)
    return last.run


def streamed_on_the_loop(agent: Agent, layers: Sequence[Layer] | None) -> AgentRun:
    async def main() -> AgentRun:
        *_, last = [event async for event in agent.astream("t", layers=layers)]
        assert isinstance(last, RunFinished)
        return last.run

    return asyncio.run(main())


Driver = Callable[[Agent, "Sequence[Layer] | None"], AgentRun]
DRIVERS: dict[str, Driver] = {
    "run": lambda agent, layers: agent.execute("t", layers=layers),
    "arun": lambda agent, layers: asyncio.run(agent.aexecute("t", layers=layers)),
    "stream": streamed,
    "astream": streamed_on_the_loop,
}
under_every_driver = pytest.mark.parametrize("drive", DRIVERS.values(), ids=DRIVERS)
