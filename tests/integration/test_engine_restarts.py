"""The engine itself ends, is restarted, or stands still: sandboxes are declared lost at once, and nothing of them stays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.container import shortcut
from sandbox.docker.engine import client as engines
from sandbox.docker.kept import orphans
from sandbox.errors import ErrorCode, SandboxError

from .observing import Heartbeat, eventually, guest_pid, in_time, within
from .own_engine import IMAGE, OwnEngine, collect_sockets, running

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SMALL = Limits(memory_bytes=256 << 20)
PATIENT = Limits(memory_bytes=256 << 20, lease_seconds=3.0)


@pytest.fixture(autouse=True)
def _sockets_of_lost_engines() -> Iterator[None]:
    """Docker-py leaves the sockets of connections that were cut to the garbage collector, which warns of each."""
    yield
    collect_sockets()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    with running() as engine:
        usual(engine, monkeypatch)
        yield engine


@pytest.fixture
def restoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """An engine whose containers outlive its restart."""
    with running(live_restore=True) as engine:
        usual(engine, monkeypatch)
        yield engine


def usual(engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it count as the machine's: what is sent goes past it then (``test_engine_faults`` is about what goes through it)."""
    monkeypatch.setattr(shortcut, "SOCKETS", (engine.address.removeprefix("unix://"),))


def swept(engine: OwnEngine, seconds: float) -> bool:
    """Whether the containers go by themselves, and with the next start of a sandbox what the engine leaves of their volumes."""
    assert eventually(lambda: not engine.containers(), seconds)
    orphans._swept.clear()
    orphans.sweep(engines.connect())
    return engine.nothing_is_left()


def lost_in_a_run(env: DockerEnvironment, fault: Callable[[], object]) -> tuple[Any, float]:
    """The answer to a run during which ``fault`` happened, and how long after the fault began it came."""
    answers: list[tuple[Any, float]] = []
    thread = threading.Thread(
        target=lambda: answers.append((env.run("sleep 100", timeout_seconds=60), time.monotonic()))
    )
    thread.start()
    time.sleep(0.3)
    at = time.monotonic()
    fault()
    thread.join(30)
    assert answers, "the caller waits for ever"
    assert answers[0][0].code is ErrorCode.sandbox_unavailable
    assert answers[0][0].effects == "unknown"
    return answers[0][0], answers[0][1] - at


def works() -> bool:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        answer = env.run("echo works").unwrap().output
        env.close(wait=True)
        return answer == "works\n"


def test_an_engine_that_is_restarted(own: OwnEngine) -> None:
    """It takes its containers along, and does not wait 10 s for a guest that has nothing to finish."""
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    acknowledged = env.write("kept", "x").unwrap()
    with Heartbeat() as heart:
        answer, took = lost_in_a_run(env, own.terminate)
    print(f"seconds: {took:.2f}")
    assert acknowledged.created
    assert any(word in answer.error for word in ("killed from outside", "Engine is gone")), answer.error
    assert in_time(took, 2.0 + 2.0, heart)  # the engine's own end is part of it
    own.start()
    within(2.0, lambda: env.close(wait=True))
    assert own.nothing_is_left()
    assert works()


def test_an_engine_that_is_killed(own: OwnEngine) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    with Heartbeat() as heart:
        answer, took = lost_in_a_run(env, own.kill)
    print(f"seconds: {took:.2f}")
    assert "Engine is gone" in answer.error, answer.error
    assert in_time(took, 2.0, heart)
    within(5.0, lambda: env.close(wait=True))
    with pytest.raises(SandboxError) as refused:
        DockerEnvironment(IMAGE, limits=SMALL).start()
    assert refused.value.code is ErrorCode.engine_unavailable
    assert refused.value.retryable
    own.start()
    assert swept(own, 60)
    assert works()


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_restart_under_live_restore(restoring: OwnEngine, how: str) -> None:
    """The container outlives its pipe: it is declared lost at once, and is gone soon after the engine is back."""
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    guest = guest_pid(env)
    with Heartbeat() as heart:
        answer, took = lost_in_a_run(env, getattr(restoring, how))
    print(f"seconds: {took:.2f}")
    assert "Engine is gone" in answer.error, answer.error
    assert in_time(took, 2.0 + 2.0, heart)
    assert os.path.exists(f"/proc/{guest}")
    restoring.start()
    assert swept(restoring, 60)  # without close()
    assert not os.path.exists(f"/proc/{guest}")
    within(2.0, lambda: env.close(wait=True))
    assert works()


def test_a_sandbox_ends_with_its_lease_while_the_engine_is_away(restoring: OwnEngine) -> None:
    env = DockerEnvironment(IMAGE, limits=PATIENT).start()
    guest = guest_pid(env)
    env.run("sleep 1000 & true").unwrap()
    time.sleep(3.5)
    assert env.run("echo pings keep the lease").ok
    at = time.monotonic()
    with Heartbeat() as heart:
        restoring.kill()
        assert eventually(lambda: not os.path.exists(f"/proc/{guest}"), 30)
        took = time.monotonic() - at
    assert in_time(took, 3.0 * 1.25 + 1.0, heart)
    print(f"seconds: {took:.2f}")
    assert "Engine is gone" in env.run("true").error  # type: ignore[union-attr]
    restoring.start()
    assert swept(restoring, 60)
    env.close()


def test_a_sandbox_past_the_engine_does_not_miss_one_that_stands_still(own: OwnEngine) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.run("true").unwrap()  # its answer comes past the engine, so what went through it has arrived
        own.freeze()
        try:
            answer, _ = within(3.0, lambda: env.run("echo works", timeout_seconds=20))
            assert answer.unwrap().output == "works\n"
        finally:
            own.thaw()
    assert own.nothing_is_left()


def test_an_engine_that_stands_still(own: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and never answers. What it holds is not said to be ended, and goes on when it does."""
    monkeypatch.setattr(shortcut, "SOCKETS", ())
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        own.freeze()
        try:
            answer, took = within(1.0 + 2.0 + 2.5, lambda: env.run("true", timeout_seconds=1.0))
            print(f"seconds: {took:.2f}")
            assert answer.code is ErrorCode.sandbox_unavailable
            assert "The Docker Engine does not answer either." in answer.error
            assert "was ended" not in answer.error
        finally:
            own.thaw()
        assert env.run("echo goes on").unwrap().output == "goes on\n"
    assert own.nothing_is_left()


def test_closing_while_the_engine_stands_still(own: OwnEngine) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    own.freeze()
    try:
        within(12.0, lambda: env.close(wait=True))
    finally:
        own.thaw()
    assert own.nothing_is_left()


def test_paused_sandboxes_of_dead_orchestrators_are_swept(own: OwnEngine) -> None:
    """They cannot end by themselves; those of living ones stay."""
    with DockerEnvironment(IMAGE, limits=SMALL) as mine:
        child = os.fork()
        if not child:
            engines._clients.clear()
            env = DockerEnvironment(IMAGE, limits=SMALL).start()
            engines.connect().api.pause(env.container_id)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(1.0)
        assert len(own.containers()) == 2
        orphans._swept.clear()
        assert works()
        assert own.containers() == [f"/{mine.backend.name}"]
        assert mine.run("true").ok
