"""Whoever answers for refused hosts: how often it is asked, what is remembered, and what happens when it says nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandbox.errors import SandboxError
from sandbox.guest.protocol.wire import Kind, pack_message, unpack_message
from sandbox.limits import Limits
from sandbox.network.allowance import Allowance
from sandbox.network.approval import Questions
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.dialling import RefusedError
from sandbox.network.egress import Egress
from sandbox.network.policy import Network

Answering = Callable[[str, int], Any]


async def gathered(*tries: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*tries, return_exceptions=True)


def tried(
    questions: Questions, ask: Answering, host: str, seconds: float = 20.0, most: int = 64, needed: bool = True
) -> Awaitable[Any]:
    return questions.answer(ask, host, 443, seconds=seconds, most=most, needed=lambda: needed)


class Asked:
    """Remembers what it was asked, and answers always the same after ``seconds``."""

    def __init__(self, answer: Any, seconds: float = 0.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.hosts: list[str] = []

    def __call__(self, host: str, _port: int) -> Any:
        self.hosts.append(host)
        time.sleep(self.seconds)
        return self.answer


@pytest.mark.parametrize("answer", ["once", "session", None])
def test_tries_of_one_host_while_it_is_undecided_share_one_question(answer: Any) -> None:
    ask = Asked(answer, 0.3)

    async def many() -> list[Any]:
        questions = Questions()
        return await gathered(*(tried(questions, ask, "a.test") for _ in range(100)))

    said = asyncio.run(many())
    assert ask.hosts == ["a.test"]
    assert all(one == answer if answer else isinstance(one, RefusedError) for one in said)


def test_a_refusal_is_remembered_and_an_answer_for_once_is_not() -> None:
    no, once = Asked(None), Asked("once")

    async def one_after_the_other() -> None:
        questions = Questions()
        for _ in range(300):
            with pytest.raises(RefusedError) as refused:
                await tried(questions, no, "a.test")
            assert refused.value.kind == "asked"
        for _ in range(3):
            assert await tried(questions, once, "a.test") == "once"

    asyncio.run(one_after_the_other())
    assert no.hosts == ["a.test"]
    assert once.hosts == ["a.test"] * 3  # another callable: what the first one refused is not its word


def test_questions_are_bounded_and_the_limit_is_named() -> None:
    ask = Asked(None)

    async def many() -> list[Any]:
        questions = Questions()
        return await gathered(*(tried(questions, ask, f"{n}.test", most=5) for n in range(50)))

    said = asyncio.run(many())
    assert len(ask.hosts) == 5
    assert [(one.kind, one.about) for one in said[5:]] == [("limit", "network_questions")] * 45


def test_what_was_never_put_counts_towards_no_limit_and_another_callable_is_asked_itself() -> None:
    first, other = Asked("once", 0.1), Asked(None)

    async def many() -> list[Any]:
        questions = Questions()
        unneeded = await gathered(*(tried(questions, first, f"{n}.test", needed=False, most=3) for n in range(10)))
        both = await gathered(tried(questions, first, "a.test", most=3), tried(questions, other, "a.test", most=3))
        return [*unneeded, *both]

    *unneeded, one, two = asyncio.run(many())
    assert unneeded == [None] * 10
    assert one == "once"
    assert isinstance(two, RefusedError)
    assert (first.hosts, other.hosts) == (["a.test"], ["a.test"])


def test_one_that_hangs_is_a_refusal_in_time_and_is_asked_nothing_more_before_it_has_returned() -> None:
    free = threading.Event()
    hosts: list[str] = []

    def hangs(host: str, _port: int) -> str:
        hosts.append(host)
        free.wait(60)
        return "session"

    async def several() -> tuple[list[Any], float]:
        questions = Questions()
        began = time.monotonic()
        said = await gathered(*(tried(questions, hangs, f"{n}.test", seconds=0.3) for n in range(100)))
        took = time.monotonic() - began
        free.set()
        assert questions._returned is not None
        await asyncio.to_thread(questions._returned.wait, 60)
        assert await tried(questions, hangs, "later.test") == "session"
        return said, took

    said, took = asyncio.run(several())
    assert all(isinstance(one, RefusedError) for one in said)
    assert took < 25  # each of them would have taken 0.3
    assert hosts == ["0.test", "later.test"]


def test_one_question_at_a_time_and_none_that_is_not_needed_any_more() -> None:
    at_once: list[int] = []
    working: list[int] = []

    def ask(_host: str, _port: int) -> str:
        working.append(1)
        at_once.append(len(working))
        time.sleep(0.05)
        working.pop()
        return "once"

    async def many() -> list[Any]:
        questions = Questions()
        return await gathered(*(tried(questions, ask, f"{n}.test", needed=n % 2 == 0) for n in range(10)))

    assert asyncio.run(many()) == ["once", None] * 5
    assert at_once == [1] * 5


def test_one_that_fails_opens_nothing() -> None:
    def fails(_host: str, _port: int) -> str:
        raise ValueError("no")

    with pytest.raises(RefusedError):
        asyncio.run(tried(Questions(), fails, "a.test"))  # type: ignore[arg-type]


def test_the_guest_has_the_words_and_an_end_waits_for_no_answer() -> None:
    frames: list[tuple[int, bytes]] = []
    log: list[Connection] = []
    free = threading.Event()

    def hangs(_host: str, _port: int) -> None:
        free.wait(60)

    egress = Egress(
        Network.allow(ask=hangs, ask_seconds=0.3), lambda k, _, data=b"", /: frames.append((k, bytes(data))),
        ConnectionLog(log.append), Allowance(Limits(network_questions=1)),
    )  # fmt: skip
    try:
        for number, host in enumerate(("a.test", "b.test")):
            egress.streams.take(Kind.OPEN, 1 << 31 | number, pack_message({"host": host, "port": 443}))
        deadline = time.monotonic() + 120
        while len(frames) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        told = sorted(unpack_message(data)[0]["denied"] for _, data in frames)
        assert told == [
            "no rule opens it, and 1 questions were asked about such hosts, the most there may be",
            "no rule opens it, and who was asked about it did not answer within 0.3 seconds",
        ]
        egress.allowance = Allowance(Limits())
        egress.streams.take(Kind.OPEN, 1 << 31 | 3, pack_message({"host": "c.test", "port": 443}))
    finally:
        began = time.monotonic()
        egress.streams.close()
        assert time.monotonic() - began < 30
        free.set()


def test_what_is_no_host_is_not_asked_about_and_rules_have_no_control_characters() -> None:
    ask = Asked("session")
    frames: list[int] = []
    egress = Egress(Network.allow("a.test\n", ask=ask), lambda k, *_: frames.append(k), ConnectionLog())
    hosts = ["evil\n.test", "a\x1b[2Jb", "x" * 300, "a b", "::1%\x1b[2J"]
    try:
        for number, host in enumerate(hosts):
            egress.streams.take(Kind.OPEN, 1 << 31 | number, pack_message({"host": host, "port": 443}))
        deadline = time.monotonic() + 120
        while len(frames) < len(hosts) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        egress.streams.close()
    assert ask.hosts == []
    assert len(frames) == len(hosts)
    shown = repr(egress.network) + egress.network.describe()
    assert shown.isprintable()
    assert "a.test" in shown


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5", True])
def test_what_is_no_time_to_answer_is_refused(seconds: Any) -> None:
    with pytest.raises(SandboxError, match="not a time to wait"):
        Network.allow(ask_seconds=seconds)
