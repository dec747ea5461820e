"""Requests that wake a paused sandbox: once for all of them, and seldom after a failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.service.fleet import waking
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.fleet.changes import Changes
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.problems import Problem, ProblemCode


class Sandboxes:
    """A paused sandbox, and what counts how often it is woken; ``problem`` is what comes of that."""

    def __init__(self, **options: float) -> None:
        self.live = cast("LiveSandbox", SimpleNamespace(record=SimpleNamespace(state="paused", options=options), beside={}))
        self.problem: Problem | None = None
        self.resumed, self.seconds, self.tasks = 0, list[float](), set[asyncio.Task[Any]]()

    async def resume(self, live: LiveSandbox) -> None:
        self.resumed += 1
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        live.record.state = "running"  # type: ignore[misc]

    async def update(self, live: LiveSandbox, body: Any) -> None:
        self.seconds.append(body.time_to_live_seconds)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def wake(self, *, by_port: bool = True) -> bool:
        return await waking.wake(cast("Workers", self), cast("Changes", self), self.live, by_port=by_port)


def test_all_that_wait_share_one() -> None:
    async def run() -> None:
        sandboxes = Sandboxes(wake_seconds=7.0)
        assert await asyncio.gather(*(sandboxes.wake() for _ in range(50))) == [True] * 50
        assert (sandboxes.resumed, sandboxes.seconds) == (1, [7.0])
        assert await sandboxes.wake() is False
        sandboxes.live.record.state = "paused"  # type: ignore[misc]
        assert await sandboxes.wake() is True
        assert sandboxes.resumed == 2

    asyncio.run(run())


def test_a_sandbox_that_did_not_ask_for_it_stays_paused() -> None:
    sandboxes = Sandboxes()
    assert asyncio.run(sandboxes.wake()) is False
    assert sandboxes.resumed == 0


def test_after_a_failure_a_port_waits_and_the_owner_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        sandboxes = Sandboxes(wake_seconds=7.0)
        sandboxes.problem = Problem(429, ProblemCode.quota_exceeded, "too much memory")
        for _ in range(20):
            with pytest.raises(Problem, match="too much memory"):
                await sandboxes.wake()
        assert sandboxes.resumed == 1
        with pytest.raises(Problem):
            await sandboxes.wake(by_port=False)
        assert sandboxes.resumed == 2
        monkeypatch.setattr(waking, "AGAIN_SECONDS", 0.0)
        sandboxes.problem = None
        assert await sandboxes.wake() is True

    asyncio.run(run())


def test_it_is_woken_although_the_one_who_asked_has_left() -> None:
    async def run() -> None:
        sandboxes = Sandboxes(wake_seconds=7.0)
        first = asyncio.ensure_future(sandboxes.wake())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*sandboxes.tasks)
        assert (sandboxes.resumed, sandboxes.seconds) == (1, [7.0])

    asyncio.run(run())
