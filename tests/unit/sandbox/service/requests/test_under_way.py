"""Requests are known by their ids while they are under way and for a while after; whoever waits for one may leave."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.requests import under_way as module
from sandbox.service.requests.answers import Answer, AnswerRoom
from sandbox.service.requests.bridges import BodyBridge, Feeding
from sandbox.service.requests.output import OutputLog
from sandbox.service.requests.spill import SpillRoom
from sandbox.service.requests.under_way import Requests, RequestUnderWay, digest_of
from sandbox.service.store.database import Database
from sandbox.service.store.tables.sandboxes import SandboxRecord
from tests.integration.observing import eventually


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is not needed any more has to go by itself: what waits for the collector is memory, and then a pause."""
    gc.disable()
    yield
    gc.enable()


def request(ident: str, digest: bytes = b"d") -> RequestUnderWay:
    return RequestUnderWay(ident, "run", digest)


async def quick(_: RequestUnderWay) -> Answer:
    return Answer(Success({"text": "x" * 100}))


def test_only_so_many_answers_are_kept_of_all_sandboxes_together() -> None:
    async def main() -> list[str]:
        room = AnswerRoom(most=3)
        sandboxes = [Requests("t", room), Requests("t", room)]
        for n in range(6):
            await sandboxes[n % 2].begin(request(f"r{n}"), quick).wait()
            await asyncio.sleep(0)
        sandboxes[1].forget_answers()
        await sandboxes[0].begin(request("r6"), quick).wait()
        await asyncio.sleep(0)
        return [f"r{n}" for n in range(7) if sandboxes[n % 2].same(f"r{n}", b"d") is not None]

    assert asyncio.run(main()) == ["r4", "r6"]


def test_a_request_may_end_while_it_is_being_stopped() -> None:
    async def main() -> None:
        requests, made, ended = Requests(), request("r1"), asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(ended.set)
            assert eventually(lambda: made.answer is not None)

        async def work(_: RequestUnderWay) -> Answer:
            with made.cancel.calling(stop):
                await ended.wait()
            return await quick(made)

        requests.begin(made, work)
        await asyncio.sleep(0)
        await requests.stop("r1", 5)
        assert made.answer is not None
        with pytest.raises(Problem, match="No request 'r1' is under way"):
            await requests.stop("r1", 5)

    asyncio.run(main())


def test_output_in_memory_counts_as_the_answer_does_and_goes_with_it(no_collector: None) -> None:
    async def main() -> tuple[list[str], list[bool]]:
        requests, outputs = Requests("t", AnswerRoom(most_bytes=2500)), []
        for n in range(4):
            streamed = RequestUnderWay(f"r{n}", "run", b"d", OutputLog())
            assert streamed.output is not None
            streamed.output.append("stdout", bytes(1000))
            outputs.append(weakref.ref(streamed.output))
            await requests.begin(streamed, quick).wait()
            del streamed
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        kept = [ident for ident in ("r0", "r1", "r2", "r3") if requests.same(ident, b"d") is not None]
        return kept, [output() is not None for output in outputs]

    assert asyncio.run(main()) == (["r2", "r3"], [False, False, True, True])


def test_what_is_kept_of_a_request_is_its_answer_and_not_how_it_came(no_collector: None) -> None:
    async def main() -> None:
        requests = Requests()
        begun = requests.begin(request("r"), quick)
        task = weakref.ref(begun.task)
        assert json.loads((await begun.wait()).plain)["result"] == {"text": "x" * 100}
        await asyncio.sleep(0)
        assert requests.find("r") is begun
        assert task() is None
        assert (await begun.wait()) is begun.answer
        begun.cancel.cancel()  # by a client that has not seen the end: it stops nothing

    asyncio.run(main())


def test_commands_of_a_tenant_whose_input_is_streamed_leave_threads_to_others() -> None:
    async def main() -> None:
        feeding, end = Feeding(5), asyncio.Event()
        sandboxes = {tenant: Requests(tenant, feeding=feeding) for tenant in ("busy", "other")}

        async def slow(_: RequestUnderWay) -> Answer:
            await end.wait()
            return Answer(Success(1))

        def begin(tenant: str, ident: str) -> RequestUnderWay:
            return sandboxes[tenant].begin(RequestUnderWay(ident, "run", b"d", stdin=BodyBridge()), slow)

        begun = [begin("busy", f"r{n}") for n in range(3)]
        with pytest.raises(Problem) as caught:
            begin("busy", "r3")
        assert (caught.value.status, caught.value.retryable) == (429, True)
        assert len(sandboxes["busy"].under_way()) == 3
        begun.append(begin("other", "r"))
        end.set()
        for each in begun:
            await each.wait()
        await asyncio.sleep(0)
        await asyncio.gather(*(begin("other", f"s{n}").wait() for n in range(3)))

    asyncio.run(main())


def test_a_request_under_way_is_not_forgotten_for_others() -> None:
    async def main() -> None:
        requests, end = Requests("t", AnswerRoom(most=1)), asyncio.Event()

        async def slow(_: RequestUnderWay) -> Answer:
            await end.wait()
            return Answer(Success(1))

        first = requests.begin(request("slow"), slow)
        for n in range(3):
            await requests.begin(request(f"r{n}"), quick).wait()
        assert [each.id for each in requests.under_way()] == ["slow"]
        end.set()
        await first.wait()
        await asyncio.sleep(0)
        assert requests.find("slow") is first
        assert requests.under_way() == []

    asyncio.run(main())


def test_another_request_with_the_same_id_is_refused() -> None:
    async def main() -> None:
        requests = Requests()
        await requests.begin(request("r"), quick).wait()
        with pytest.raises(Problem) as caught:
            requests.same("r", b"other")
        assert caught.value.code is ProblemCode.request_id_reused
        with pytest.raises(Problem) as caught:
            requests.find("none")
        assert caught.value.code is ProblemCode.request_not_found

    asyncio.run(main())


def test_the_digest_is_that_of_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(**args: Any) -> bytes:
        return asyncio.run(digest_of("run", args))

    assert digest(a=1, b=2) == digest(b=2, a=1)
    assert digest(a="\udcff") != digest(a="?")
    monkeypatch.setattr(module, "LONG_CHARS", 2)
    assert digest(a="long\udcff", b=2) == digest(b=2, a="long\udcff")
    assert len({digest(a="long"), digest(a="lonG"), digest(b="long"), digest(a="l")}) == 4


def test_who_waits_may_leave_and_the_request_goes_on() -> None:
    async def main() -> None:
        requests, done = Requests(), []

        async def slow(_: RequestUnderWay) -> Answer:
            await asyncio.sleep(0.1)
            done.append(True)
            return Answer(Success(1))

        begun = requests.begin(request("r"), slow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(begun.wait(), 0.01)
        assert json.loads((await begun.wait()).plain)["result"] == 1
        assert done == [True]

    asyncio.run(main())


def test_a_request_that_failed_is_made_anew() -> None:
    async def main() -> None:
        requests = Requests()

        async def broken(_: RequestUnderWay) -> Answer:
            raise ValueError("a bug")

        with pytest.raises(ValueError, match="a bug"):
            await requests.begin(request("r"), broken).wait()
        await asyncio.sleep(0)
        assert requests.same("r", b"d") is None

    asyncio.run(main())


def test_only_so_many_are_under_way_also_if_their_clients_have_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MOST_UNDER_WAY", 2)

    async def main() -> None:
        database = Database(tmp_path / "db")
        never: asyncio.Future[AsyncEnvironment] = asyncio.get_running_loop().create_future()
        record = SandboxRecord(
            id="a", tenant="t", ident="i", state="running", created_at=0, ends_at=1e12, time_to_live_seconds=1, spec={}
        )
        live = LiveSandbox(record, lambda: never, SpillRoom(tmp_path), Any)  # type: ignore[arg-type, return-value]
        sent = [await live.send(database, "stat", {"path": "x"}, f"r{n}") for n in range(2)]
        with pytest.raises(Problem) as caught:
            await live.send(database, "stat", {"path": "x"}, "r2")
        assert (caught.value.status, caught.value.retryable) == (429, True)
        assert await live.send(database, "stat", {"path": "x"}, "r1") is sent[1]
        never.set_exception(SandboxError(ErrorCode.engine_unavailable, "It is gone.", "Wait."))
        for each in sent:
            assert (await each.wait()).code == ErrorCode.engine_unavailable
        await asyncio.sleep(0)
        assert (await (await live.send(database, "stat", {"path": "x"}, "r2")).wait()).code
        database.close()

    asyncio.run(main())
