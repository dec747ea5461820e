"""Several threads may call ``start()``: one starts the sandbox, all have the same (review of the sandbox, 5.2)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import LocalEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.pipe.transport import Transport


class _Counted(LocalEnvironment):
    """Counts how often it was started, and takes its time."""

    connects = 0
    fails = False
    closes = False
    connecting = threading.Event()

    def _connect(self) -> Transport:
        self.connects += 1
        self.connecting.set()
        until = time.monotonic() + (60 if self.closes else 0.1)
        while not self._closed and time.monotonic() < until:
            time.sleep(0.01)
        if self.fails:
            raise SandboxError(ErrorCode.start_failed, "It does not start.", "Try another one.")
        return super()._connect()


def test_threads_that_start_one_environment_get_the_same_sandbox() -> None:
    """The second one made a container under the same name, was refused, and removed that of the first."""
    env = _Counted()
    with ThreadPoolExecutor(4) as pool, env:
        assert [each.result() for each in [pool.submit(env.start) for _ in range(4)]] == [env] * 4
        answers = list(pool.map(lambda _: env.run("echo here").unwrap().stdout, range(4)))
    assert answers == ["here\n"] * 4
    assert env.connects == 1


def test_threads_that_start_one_environment_at_once_start_it_once() -> None:
    env = _Counted()
    with ThreadPoolExecutor(4) as pool:
        starts = [pool.submit(env.start) for _ in range(4)]
        assert all(each.result() is env for each in starts)
    assert env.connects == 1
    assert env.run("echo here").unwrap().stdout == "here\n"
    env.close()


def test_a_start_that_fails_fails_for_every_thread_that_waited_for_it() -> None:
    env = _Counted()
    env.fails = True
    with ThreadPoolExecutor(3) as pool:
        errors = [pool.submit(env.start).exception() for _ in range(3)]
    assert [str(error) for error in errors] == [str(errors[0])] * 3
    assert "It does not start." in str(errors[0])
    assert env.connects == 1


def test_an_environment_that_is_closed_while_it_starts_leaves_nothing() -> None:
    env = _Counted()
    env.connecting, env.closes = threading.Event(), True
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(env.start)
        assert env.connecting.wait(60)
        env.close()
        with pytest.raises(SandboxError) as raised:
            start.result()
    assert raised.value.code is ErrorCode.sandbox_closed
    assert env.backend.process is None
    assert env.backend.temporary is None
