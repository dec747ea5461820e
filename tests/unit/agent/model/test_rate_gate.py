"""The gate of a rate limit: closed for all, then opened step by step."""

from __future__ import annotations

import threading
import time

import pytest

from agent.model.faults import wait_seconds
from agent.model.rate_gate import RateGate, gate_for


def nothing() -> None:
    pass


def test_an_open_gate_lets_any_number_pass_at_once() -> None:
    gate = RateGate()
    together = threading.Barrier(8, timeout=10)

    def call() -> None:
        with gate.passing(nothing):
            together.wait()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not together.broken


def test_after_a_limit_one_goes_first_and_then_ever_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.model.rate_gate.FIRST_SECONDS", 600.0)
    gate = RateGate()
    began, under_way, most = time.monotonic(), [0], []
    gate.close(0.2)
    lock, third_entered = threading.Lock(), threading.Event()

    def call() -> None:
        with gate.passing(nothing):
            with lock:
                under_way[0] += 1
                most.append((time.monotonic() - began, under_way[0]))
                is_second = len(most) == 2
                if len(most) == 3:
                    third_entered.set()
            if is_second:
                third_entered.wait(20)
            else:
                time.sleep(0.1)
            with lock:
                under_way[0] -= 1

    threads = [threading.Thread(target=call) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most[0][0] >= 0.19
    assert [count for _, count in most[:3]] == [1, 1, 2]
    assert max(count for _, count in most) <= 4


def test_a_refused_first_call_keeps_it_closed() -> None:
    gate = RateGate()
    gate.close(0.05)

    def refused() -> None:
        with gate.passing(nothing):
            gate.close(0.3)
            raise RuntimeError

    began = time.monotonic()
    with pytest.raises(RuntimeError):
        refused()
    with gate.passing(nothing):
        assert time.monotonic() - began >= 0.25


def test_a_first_call_that_hangs_does_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.model.rate_gate.FIRST_SECONDS", 0.3)
    gate = RateGate()
    gate.close(0)
    began = time.monotonic()
    with gate.passing(nothing), gate.passing(nothing):
        assert 0.2 <= time.monotonic() - began < 60


def test_the_check_ends_a_wait() -> None:
    gate = RateGate()
    gate.close(60)
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise TimeoutError

    with pytest.raises(TimeoutError), gate.passing(check):
        pass


def test_a_gate_belongs_to_one_model_address_and_key() -> None:
    assert gate_for("openai/a", None, "k") is gate_for("openai/a", None, "k")
    others = [
        gate_for("openai/b", None, "k"),
        gate_for("openai/a", "http://x", "k"),
        gate_for("openai/a", None, "other"),
    ]
    assert all(gate is not gate_for("openai/a", None, "k") for gate in others)


class RefusedError(Exception):
    """What litellm raises for a 429, as far as the pause is concerned."""

    def __init__(self, retry_after: str) -> None:
        super().__init__("429")
        self.litellm_response_headers = {"retry-after": retry_after}


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [("120", 120.0), ("0.5", 0.5), ("-3", 0.0), ("99999", 600.0), ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0)],
)
def test_the_pause_is_what_the_provider_asks_for(retry_after: str, seconds: float) -> None:
    assert wait_seconds(RefusedError(retry_after), 1, 600.0) == seconds


@pytest.mark.parametrize("retry_after", ["nan", "inf", "soon", "Mon, 99 Jan 9999999 00:00:00 GMT", ""])
def test_a_pause_that_is_no_number_is_not_taken(retry_after: str) -> None:
    assert 0.7 < wait_seconds(RefusedError(retry_after), 1, 600.0) < 1.3
    assert wait_seconds(RefusedError(retry_after), 20, 600.0) == 60.0
