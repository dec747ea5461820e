"""What is made once for all threads is made without holding up those that want something else (review of the sandbox, 5.4)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.docker.engine.shared import Shared


def test_many_that_ask_for_one_get_the_same() -> None:
    shared: Shared[str, object] = Shared()
    begun = threading.Barrier(4)

    def ask(_: int) -> object:
        begun.wait(10)
        return shared.obtain("engine", object)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1


def test_an_engine_that_does_not_answer_holds_up_nobody_else() -> None:
    shared: Shared[str, str] = Shared()
    asked, answers = threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        answers.wait(10)
        return "slow"

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shared.obtain, "silent", slow)
        assert asked.wait(10)
        assert shared.obtain("other", lambda: "quick") == "quick"
        answers.set()
        assert first.result() == "slow"


def test_what_failed_or_ended_is_made_again() -> None:
    shared: Shared[str, list[int]] = Shared()

    def fails() -> list[int]:
        raise OSError("no engine")

    with pytest.raises(OSError, match="no engine"):
        shared.obtain("engine", fails)
    first = shared.obtain("engine", lambda: [1])
    assert shared.obtain("engine", lambda: [2], lambda value: value != [1]) == [2]
    assert shared.obtain("engine", lambda: [3]) == [2] != first
