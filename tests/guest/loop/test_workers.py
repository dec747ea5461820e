"""The guest's threads for file operations: as many as there are jobs, and few again afterwards."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from sandbox.guest.loop import workers
from sandbox.guest.loop.workers import READY_AT_START, Workers


def live_workers() -> int:
    return len(os.listdir("/proc/self/task"))


def meet(together: threading.Barrier) -> None:
    together.wait(60)


def test_a_burst_has_a_thread_each_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads count among the processes that commands may have: sixty that stayed would leave a small sandbox none."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.05)
    before = live_workers()
    pool = Workers(64, None)
    for _ in range(3):
        together = threading.Barrier(61)
        for _ in range(60):
            pool.submit(partial(meet, together))
        assert pool.busy()
        together.wait(60)  # all sixty run at the same time
        deadline = time.monotonic() + 60
        while live_workers() > before + READY_AT_START and time.monotonic() < deadline:
            time.sleep(0.01)
        assert live_workers() == before + READY_AT_START
        assert not pool.busy()


def test_no_job_is_left_behind_by_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.001)
    pool = Workers(8, None)
    for _ in range(300):
        together = threading.Barrier(5)
        for _ in range(4):
            pool.submit(partial(meet, together))
        together.wait(60)
        time.sleep(0.001)
