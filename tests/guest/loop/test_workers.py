"""The guest's threads for file operations: as many as there are jobs, and few again afterwards."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from sandbox.guest.loop import workers
from sandbox.guest.loop.workers import READY_AT_START, Workers


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One for each thread of a pool that has been started and has not come to its end."""
    found: list[object] = []

    def start_thread(work: Callable[[], None], args: tuple[()]) -> int:
        def noted() -> None:
            work(*args)
            found.pop()

        found.append(work)
        return _thread.start_new_thread(noted, ())

    monkeypatch.setattr(workers, "start_thread", start_thread)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def meet(together: threading.Barrier) -> None:
    together.wait(60)


def test_a_burst_has_a_thread_each_and_gives_them_back(monkeypatch: pytest.MonkeyPatch, live: list[object]) -> None:
    """Threads count among the processes that commands may have: sixty that stayed would leave a small sandbox none."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.05)
    pool = Workers(64, None)
    for _ in range(3):
        together = threading.Barrier(61)
        for _ in range(60):
            pool.submit(partial(meet, together))
        assert pool.busy()
        together.wait(60)  # all sixty run at the same time
        wait_until(lambda: len(live) == READY_AT_START)
        wait_until(lambda: not pool.busy())


def test_no_job_is_left_behind_by_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.001)
    pool = Workers(8, None)
    for _ in range(300):
        together = threading.Barrier(5)
        for _ in range(4):
            pool.submit(partial(meet, together))
        together.wait(60)
        time.sleep(0.001)
