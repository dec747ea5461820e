"""A busy tenant is let in a few requests at a time while others are there, and waits for nothing if it is alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from sandbox.service.tenants import pace as module
from sandbox.service.tenants.pace import Pace

Leave = Callable[[], None]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def begun(pace: Pace, tenant: str, count: int) -> list[asyncio.Task[Leave]]:
    return [asyncio.create_task(pace.enter(tenant)) for _ in range(count)]


def done(tasks: list[asyncio.Task[Leave]]) -> int:
    return sum(task.done() for task in tasks)


@pytest.fixture(autouse=True)
def no_growing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "YOUNG_SECONDS", 60.0)
    monkeypatch.setattr(module, "MOST_YOUNG", 3)
    monkeypatch.setattr(module, "LATELY_SECONDS", 60.0)


def test_one_alone_waits_for_nothing_and_beside_others_for_its_own_requests_only() -> None:
    async def main() -> None:
        pace = Pace()
        alone = begun(pace, "busy", 50)
        await settle()
        assert done(alone) == 50
        for task in alone:
            task.result()()
        (await pace.enter("quiet"))()
        busy = begun(pace, "busy", 10)
        await settle()
        assert done(busy) == 3
        quiet = begun(pace, "quiet", 2)
        await settle()
        assert done(quiet) == 2, "they do not wait behind the others"
        leave = busy[0].result()
        leave()
        leave()
        await settle()
        assert done(busy) == 4, "each makes room for one, once"
        busy[5].cancel()
        for n in (1, 2, 3, 4):
            busy[n].result()()
            await settle()
        assert done(busy) == 9
        for task in (*busy, *quiet):
            if task.done() and not task.cancelled():
                task.result()()
        await settle()
        busy[9].result()()
        assert not pace._young
        assert not pace._queues

    asyncio.run(main())


def test_one_that_goes_on_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(module, "YOUNG_SECONDS", 0.001)
        pace = Pace()
        (await pace.enter("quiet"))()
        async with asyncio.timeout(10):
            await asyncio.gather(*begun(pace, "busy", 20))

    asyncio.run(main())


def test_a_tenant_that_was_here_some_time_ago_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pace = Pace()
        await pace.enter("quiet")
        monkeypatch.setattr(module, "LATELY_SECONDS", 0.0)
        busy = begun(pace, "busy", 10)
        await settle()
        assert done(busy) == 10

    asyncio.run(main())


def test_a_request_that_was_answered_leaves_nothing_for_the_collector_of_garbage() -> None:
    request: ContextVar[dict[str, Leave]] = ContextVar("request")

    async def visit() -> weakref.ref[Leave]:
        state: dict[str, Leave] = {}
        request.set(state)  # which timers keep, too
        state["leave"] = leave = await Pace().enter("one")
        leave()
        return weakref.ref(leave)

    async def main() -> bool:
        seen = await asyncio.create_task(visit())
        await settle()
        return seen() is None

    gc.disable()
    try:
        assert asyncio.run(main())
    finally:
        gc.enable()
