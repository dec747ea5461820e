"""The way to the engine breaks in every way: an error with the right reason, in time, and nothing left behind."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker import backend
from sandbox.docker.engine import client as engines
from sandbox.docker.engine.client import connect
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import EngineProxy, Faults

from .observing import Heartbeat, eventually, in_time, in_workspace, pause, within
from .own_engine import IMAGE, OwnEngine, collect_sockets

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

SMALL = Limits(memory_bytes=256 << 20)


@pytest.fixture(autouse=True)
def _sockets_of_lost_engines() -> Iterator[None]:
    """Docker-py leaves the sockets of connections that were cut to the garbage collector, which warns of each."""
    before = set(engines._clients)
    yield
    for lost in set(engines._clients) - before:
        engines._clients.pop(lost).close()
    collect_sockets()


@pytest.fixture
def proxy(engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    with EngineProxy(engine.address) as made:
        monkeypatch.setenv("DOCKER_HOST", made.address)
        yield made
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    assert engine.nothing_is_left()


def in_a_run(
    env: DockerEnvironment, fault: Callable[[], object], command: str, seconds: float, *, paused: bool = False
) -> tuple[Any, float]:
    """The answer to a run in the middle of which ``fault`` happened, and how long after that it came.

    The fault waits until the command has begun; that of a paused sandbox does not begin.
    """
    answers: list[tuple[Any, float]] = []
    begun = in_workspace(env, "begun")
    begun.unlink(missing_ok=True)

    def run() -> None:
        answer = env.run(f"touch /workspace/begun; {command}", timeout_seconds=seconds, keep_output_bytes=1 << 20)
        answers.append((answer, time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    if paused:
        time.sleep(0.3)
    else:
        assert eventually(begun.exists)
    at = time.monotonic()
    fault()
    thread.join(seconds + 10)
    assert answers, "the caller waits for ever"
    return answers[0][0], answers[0][1] - at


# --- the pipe of a sandbox ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 3, 20, 5000])
def test_the_pipe_is_cut_in_mid_frame(proxy: EngineProxy, count: int) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        go = in_workspace(env, "go")

        def fault() -> None:
            if count:
                proxy.inject(Faults(cut_after_bytes=count), "attach")
                go.touch()
            else:
                proxy.cut("attach")

        with Heartbeat() as heart:
            answer, took = in_a_run(env, fault, "until [ -e go ]; do sleep 0.05; done; seq 200000", 30)
        assert not answer.ok
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "connection to the sandbox was cut" in answer.error, answer.error
        assert answer.effects == "unknown"
        assert in_time(took, (0.5 if count else 0.0) + 2.0, heart)
        print(f"seconds: {took:.2f}")
        again, _ = within(0.25, lambda: env.read("x"))
        assert again.code is ErrorCode.sandbox_unavailable


def test_the_pipe_is_cut_in_the_middle_of_a_request(proxy: EngineProxy) -> None:
    """What the guest got of it is no request: nothing of it is carried out, and it ends."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        proxy.inject(Faults(cut_after_bytes=100_000), "attach", direction="up")
        answer, _ = within(2.0, lambda: env.write("large", "x" * 1_000_000))
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "connection to the sandbox was cut" in answer.error, answer.error


@pytest.mark.parametrize("direction", ["down", "up"])
def test_one_direction_of_the_pipe_stalls(proxy: EngineProxy, direction: Any) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        stall = functools.partial(proxy.inject, Faults(stalled=True), "attach", direction=direction)
        command = "seq 200000; sleep 100" if direction == "down" else "sleep 1"
        if direction == "down":  # slow before it stalls: no answer gets through, however late the stall is
            proxy.inject(Faults(bytes_per_second=20_000), "attach")
        with Heartbeat() as heart:
            seconds = 4.0
            answer, took = in_a_run(env, stall, command, seconds)
            if direction == "up":  # the command was under way, and its answer comes through
                assert answer.ok or answer.code is ErrorCode.timeout, answer
                seconds = 1.0
                answer, took = within(seconds + 2.5, lambda: env.run("true", timeout_seconds=seconds))
        assert answer.code is ErrorCode.sandbox_unavailable
        silent = f"did not answer within {seconds + 2:g} seconds."
        ended = ["It was ended with everything in it."]
        ended += ["The Docker Engine was asked to end it, and has not answered within 1 second."]
        if heart.lost_seconds > 0.5:  # the engine is as late as this process
            ended += ["The Docker Engine does not answer either."]
        assert any(f"{silent} {words}" in answer.error for words in ended), answer.error
        assert in_time(took, seconds + 2.5, heart)
        later = env.run("true")
        assert f"{silent} It was given up." in later.error  # type: ignore[union-attr]


def test_a_slow_pipe_carries_everything(proxy: EngineProxy) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        for direction in ("down", "up"):
            proxy.inject(Faults(delay_seconds=0.02, bytes_per_second=200_000), "attach", direction=direction)
        text = "".join(f"{n}\n" for n in range(10_000))
        env.write("slow", text).unwrap()
        assert env.read("slow").unwrap().content == text
        assert env.run("seq 0 9999", keep_output_bytes=1 << 20).unwrap().output == text


def test_a_download_that_was_cut_leaves_no_half_of_it(proxy: EngineProxy, tmp_path: Path) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.run("dd if=/dev/zero of=large bs=1M count=20").unwrap()
        proxy.inject(Faults(cut_after_bytes=5_000_000), "attach")
        answer = env.download("large", to=tmp_path / "large")
        assert answer.code is ErrorCode.sandbox_unavailable  # type: ignore[union-attr]
        assert list(tmp_path.iterdir()) == []


# --- the engine's other answers -----------------------------------------------------------------------------------------------


def test_all_connections_are_cut_and_none_can_be_made(proxy: EngineProxy) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    with Heartbeat() as heart:
        answer, took = in_a_run(env, proxy.close, "sleep 100", 30)
    assert answer.code is ErrorCode.sandbox_unavailable
    assert "Engine is gone" in answer.error, answer.error
    assert in_time(took, 2.0, heart)
    within(2.0, env.close)


def test_a_lost_event_stream_does_not_make_an_engine_gone(proxy: EngineProxy) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        proxy.cut("events")
        time.sleep(0.2)
        with Heartbeat() as heart:
            answer, took = in_a_run(env, lambda: connect().api.kill(env.container_id), "sleep 100", 30)
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "Engine is gone" not in answer.error
        assert in_time(took, 2.0, heart)
    with DockerEnvironment(IMAGE, limits=SMALL) as another:  # a new stream is opened for it
        connect().api.kill(another.container_id)
        assert "killed from outside" in another.run("true").error  # type: ignore[union-attr]


def test_a_paused_sandbox_whose_pipe_was_cut_is_ended(proxy: EngineProxy) -> None:
    """It cannot notice by itself."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        pause(connect(), env.container_id)
        with Heartbeat() as heart:
            answer, took = in_a_run(env, lambda: proxy.cut("attach"), "true", 30, paused=True)
        assert "cannot be reached any more: its connection was cut. It was ended" in answer.error
        assert in_time(took, 2.0, heart)


def test_an_engine_that_answers_late_is_waited_for(proxy: EngineProxy) -> None:
    proxy.inject(Faults(delay_seconds=0.3))
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        assert env.run("echo late").unwrap().output == "late\n"


@pytest.mark.parametrize("kind", ["create", "attach", "start", "events"])
def test_an_engine_that_falls_silent_in_the_middle_of_a_start(
    proxy: EngineProxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request arrived, and is carried out: what it made is found by its name and removed."""
    with DockerEnvironment(IMAGE, limits=SMALL):
        pass  # what is made once for an engine is there now
    monkeypatch.setattr(backend, "connect", lambda seconds=2: connect(min(2, seconds)))
    proxy.inject(Faults(stalled=True), kind)
    before = time.monotonic()
    with Heartbeat() as heart, pytest.raises(SandboxError) as caught:
        DockerEnvironment(IMAGE, limits=SMALL).start()
    took = time.monotonic() - before
    assert caught.value.code is ErrorCode.engine_timeout
    assert caught.value.retryable
    assert caught.value.effects == "unknown"
    assert in_time(took, 2 + 2 + 1, heart)


@pytest.mark.parametrize("kind", ["create", "attach", "start", "inspect"])
def test_an_engine_that_answers_500(proxy: EngineProxy, kind: str) -> None:
    proxy.answer(kind, 500, "something broke")
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(IMAGE, limits=SMALL).start()
    assert caught.value.code is ErrorCode.engine_error
    assert "(500): something broke" in caught.value.message
    assert caught.value.retryable
    proxy.heal()
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        assert env.run("echo healed").unwrap().output == "healed\n"


def test_a_removal_that_fails_at_first_is_tried_again(proxy: EngineProxy) -> None:
    """That of a kept sandbox, which does not end with its pipe."""
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True).start()
    proxy.answer("remove", 500, "device or resource busy")
    threading.Timer(1.0, proxy.heal).start()
    within(3.0, env.remove)
    assert env.backend.name not in str(connect().api.containers(all=True))


def test_the_engine_is_not_asked_to_remove_what_ends_by_itself(proxy: EngineProxy) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    proxy.answer("remove", 500, "nobody asks for this")
    env.close(wait=True)
    assert env.backend.name not in str(connect().api.containers(all=True))


def test_connections_are_refused(proxy: EngineProxy) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        proxy.refuse()
        assert env.run("echo the pipe stands").ok
        for key in list(engines._clients):
            if proxy.address in key:
                engines._clients.pop(key).close()
        with pytest.raises(SandboxError) as caught:
            DockerEnvironment(IMAGE, limits=SMALL).start()
        assert caught.value.code is ErrorCode.engine_unavailable
        assert caught.value.retryable
        proxy.accept()
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        assert env.run("echo back").unwrap().output == "back\n"
