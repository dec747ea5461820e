"""The turns of the sandboxes that are started at once: in order, with a deadline, and never lost."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable

import pytest

from sandbox.docker.engine.turns import Turns
from sandbox.errors import ErrorCode, SandboxError
from sandbox.readers import hint_for
from tests.integration.observing import eventually


def in_a_turn(turns: Turns, note: Callable[[], object], end: threading.Event) -> threading.Thread:
    """A thread that calls ``note`` in its turn and keeps that until ``end``."""

    def hold() -> None:
        with turns.turn():
            note()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    return thread


def test_turns_come_in_the_order_of_asking_and_never_more_at_once() -> None:
    turns, order = Turns(2), list[int]()
    ends = [threading.Event() for _ in range(6)]
    threads = []
    for number, end in enumerate(ends):
        threads.append(in_a_turn(turns, functools.partial(order.append, number), end))
        assert eventually(lambda: len(order) + len(turns._queue) == len(threads))
    assert sorted(order) == [0, 1]
    for number in (1, 0, 2, 3):
        expected = len(order) + 1
        ends[number].set()
        assert eventually(functools.partial(lambda count: len(order) == count, expected))
    assert order[2:] == [2, 3, 4, 5]
    for end in ends:
        end.set()
    for thread in threads:
        thread.join()
    assert turns._free == 2


def test_a_turn_that_does_not_come_in_time_is_a_refusal_that_says_why() -> None:
    turns, end = Turns(1, wait_seconds=0.05), threading.Event()
    holder = in_a_turn(turns, lambda: None, end)
    assert eventually(lambda: turns._free == 0)
    with pytest.raises(SandboxError) as caught, turns.turn():
        pass
    end.set()
    holder.join()
    error = caught.value
    assert (error.code, error.retryable, error.effects) == (ErrorCode.capacity, True, "none")
    assert "(being started: 1; waiting before it: 0)" in error.message
    assert len({hint_for(reader, error.hint) for reader in ("model", "cli", "host")}) == 3
    with turns.turn():
        assert turns._free == 0
    assert (turns._free, len(turns._queue)) == (1, 0)


def test_ctrl_c_while_waiting_gives_up_the_place() -> None:
    turns, end = Turns(1), threading.Event()
    holder = in_a_turn(turns, lambda: None, end)
    assert eventually(lambda: turns._free == 0)

    def wait() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with turns.turn():
            pass

    with pytest.raises(KeyboardInterrupt):
        wait()
    end.set()
    holder.join()
    assert (turns._free, len(turns._queue)) == (1, 0)


def test_a_forked_process_has_all_turns() -> None:
    turns = Turns(1)
    with turns.turn():
        child = os.fork()
        if child == 0:
            os._exit(0 if turns._free == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert turns._free == 0
