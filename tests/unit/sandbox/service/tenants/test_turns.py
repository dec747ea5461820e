"""Tenants take turns: one that asks for a lot does not keep another one waiting, and nobody waits for ever or without bounds."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.errors import ErrorCode
from sandbox.service.fleet.admission import turns as module
from sandbox.service.fleet.admission.turns import NOBODY, Turns
from sandbox.service.http.problems import Problem


class Crowd:
    """Tasks that take a turn each and keep it until they are let go; ``order`` is that in which they got theirs."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.order = turns, list[str]()
        self._events: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, tenant: str, name: str, most_waiting: int | None = None) -> asyncio.Task[None]:
        leave = self._events[name] = asyncio.Event()

        async def work() -> None:
            async with self.turns.turn(tenant, most_waiting):
                self.order.append(name)
                await leave.wait()

        self.tasks.append(asyncio.create_task(work()))
        return self.tasks[-1]

    async def let_go(self, *names: str) -> None:
        for name in names:
            self._events[name].set()
        await settle()

    async def end(self) -> None:
        for event in self._events.values():
            event.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_that_asks_for_much_is_overtaken_by_one_that_asks_for_little() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(2))
        for n in range(20):
            crowd.come("greedy", f"g{n}")
        await settle()
        assert crowd.order == ["g0", "g1"]
        for n in range(3):
            crowd.come("modest", f"m{n}")
        await settle()
        for n in range(6):
            await crowd.let_go(crowd.order[n])
        assert crowd.order[2:6] == ["m0", "g2", "m1", "g3"], "in turns, though 18 of the other one came first"
        await crowd.end()

    asyncio.run(main())


def test_each_of_many_tenants_gets_one_in_each_round() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(1))
        for tenant, count in (("a", 5), ("b", 3), ("c", 1)):
            for n in range(count):
                crowd.come(tenant, f"{tenant}{n}")
        await settle()
        for n in range(8):
            await crowd.let_go(crowd.order[n])
        assert crowd.order == ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3", "a4"]
        await crowd.end()

    asyncio.run(main())


def test_one_alone_has_all_turns_and_beside_another_one_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        turns = Turns(4)
        crowd = Crowd(turns)
        for n in range(6):
            crowd.come("a", f"a{n}")
        await settle()
        assert len(crowd.order) == 4
        crowd.come("b", "b0")
        await settle()
        await crowd.let_go("a0", "a1", "a2")
        assert crowd.order[4:] == ["b0", "a4"], "half of them are a's: one place stays free for b"
        crowd.come("b", "b1")
        await settle()
        assert crowd.order[-1] == "b1"
        await crowd.let_go("b0", "b1")
        monkeypatch.setattr(module, "LATELY_SECONDS", 0.0)
        crowd.come("a", "a6")
        await settle()
        assert {"a5", "a6"} <= set(crowd.order)
        await crowd.end()
        assert turns.waiting("a") == 0

    asyncio.run(main())


def test_the_services_own_work_is_no_other_tenant() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(4))
        crowd.come(NOBODY, "own")
        for n in range(3):
            crowd.come("a", f"a{n}")
        await settle()
        assert len(crowd.order) == 4
        await crowd.end()

    asyncio.run(main())


def test_so_many_of_a_tenant_wait_and_the_next_one_is_refused() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(1))
        for n in range(3):
            crowd.come("a", f"a{n}", 2)
        await settle()
        refused = crowd.come("a", "a3", 2)
        other = crowd.come("b", "b0", 2)
        await settle()
        problem = refused.exception()
        assert isinstance(problem, Problem)
        assert (problem.status, problem.code, problem.headers["Retry-After"]) == (429, "quota_exceeded", "1")
        assert not other.done()
        await crowd.end()

    asyncio.run(main())


def test_one_that_waits_too_long_is_refused_and_one_that_leaves_takes_no_turn_with_it() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(1, seconds=0.05))
        crowd.come("a", "a0")
        await settle()
        late = crowd.come("b", "b0")
        with pytest.raises(Problem) as caught:
            await late
        assert (caught.value.status, caught.value.code) == (503, ErrorCode.capacity)
        crowd.turns._seconds = 60.0
        gone = crowd.come("c", "c0")
        await settle()
        gone.cancel()
        await settle()
        crowd.come("d", "d0")
        await settle()
        await crowd.let_go("a0")
        assert crowd.order == ["a0", "d0"]
        assert [crowd.turns.waiting(tenant) for tenant in "abcd"] == [0, 0, 0, 0]
        await crowd.end()

    asyncio.run(main())


def test_a_turn_that_comes_in_the_moment_of_leaving_is_passed_on() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(1))
        crowd.come("a", "a0")
        await settle()
        leaving = crowd.come("b", "b0")
        crowd.come("c", "c0")
        await settle()
        crowd._events["a0"].set()
        await asyncio.sleep(0)
        leaving.cancel()
        await settle()
        assert crowd.order[-1] == "c0"
        await crowd.end()

    asyncio.run(main())


def test_where_turns_last_as_long_as_a_caller_likes_a_tenant_leaves_as_many_as_it_has() -> None:
    async def main() -> None:
        crowd = Crowd(Turns(8, leaves_room=True))
        for n in range(8):
            crowd.come("greedy", f"g{n}")
        await settle()
        assert crowd.order == ["g0", "g1", "g2", "g3"]
        for n in range(3):
            crowd.come("other", f"o{n}")
        await settle()
        assert crowd.order[4:] == ["o0", "o1"]
        crowd.come("third", "t0")
        await settle()
        assert crowd.order[6:] == ["t0"]
        await crowd.let_go("g0", "g1", "g2", "g3", "o0", "o1", "t0")
        await crowd.let_go("g4", "o2")
        await crowd.end()
        assert sorted(crowd.order) == sorted([*(f"g{n}" for n in range(8)), "o0", "o1", "o2", "t0"])

    asyncio.run(main())
