"""The beginning and the end of an environment, for each kind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, LocalEnvironment, RemoteEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from tests.servers.gamebox_service import shared_service

from .checks import closed, done, refused, seen_until


def remote() -> RemoteEnvironment:
    service = shared_service()
    return RemoteEnvironment(url=service.url, api_key=service.key)


KINDS = [
    pytest.param(DockerEnvironment, marks=pytest.mark.engine, id="docker"),
    pytest.param(remote, marks=pytest.mark.engine, id="remote"),
    pytest.param(LocalEnvironment, id="local"),
]


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[SandboxedEnvironment]:
    """An environment of the test's own, not started."""
    made: SandboxedEnvironment = request.param()
    yield made
    made.close()


def test_from_beginning_to_end(own: SandboxedEnvironment) -> None:
    closed(lambda: own.run("true"), "not started", "start()")
    closed(lambda: own.download("a"), "not started")
    assert own.start() is own
    assert own.start() is own
    assert done(own.run("echo on")).output == "on\n"
    own.close()
    own.close()
    closed(lambda: own.run("true"), "closed")
    with pytest.raises(SandboxError) as caught:
        own.start()
    assert caught.value.code is ErrorCode.sandbox_closed


def test_closing_ends_what_is_under_way_at_once(own: SandboxedEnvironment) -> None:
    own.start()
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(own.run, "sleep 600", session=None), pool.submit(own.run, "sleep 600")]
        seen_until(lambda: done(own.processes()).commands, lambda commands: len(commands) == 2)
        queued = pool.submit(own.run, "sleep 600")
        time.sleep(0.3)
        began = time.monotonic()
        own.close()
        for one in running:
            refused(one.result(timeout=60), "sandbox_unavailable", "closed", effects="unknown")
        late = queued.exception(timeout=60)  # its thread may come only after the close
        if late is None:
            refused(queued.result(), "sandbox_unavailable", "closed", effects="unknown")
        else:
            closed(queued.result, "closed")
        assert time.monotonic() - began < 60


def test_too_many_sessions(own: SandboxedEnvironment) -> None:
    own.start()
    for number in range(own.limits.sessions):
        done(own.run("true", session=f"s{number}"))
    failure = refused(own.run("true", session="one more"), "too_many_commands", f"{own.limits.sessions} sessions", "session=null")
    assert failure.next_tool == "end_session"
    done(own.run("true", session="s0"))
    done(own.run("true", session=None))


def test_closing_from_many_threads(own: SandboxedEnvironment) -> None:
    own.start()
    threads = [threading.Thread(target=own.close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    closed(lambda: own.read("a"))


@pytest.mark.parametrize("kind", [DockerEnvironment, LocalEnvironment])
def test_a_workspace_that_is_none(kind: type[DockerEnvironment | LocalEnvironment], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(SandboxError, match=name) as caught:
            kind(workspace=tmp_path / name)
        assert (caught.value.code, bool(caught.value.hint)) == (ErrorCode.workspace_invalid, True)


def test_a_local_guest_that_dies_is_told(tmp_path: Path) -> None:
    with LocalEnvironment(tmp_path) as env:
        assert env.backend.process is not None
        threading.Timer(0.3, env.backend.process.kill).start()
        # The command outlives its guest: nothing else ends it here.
        refused(env.run("sleep 30"), "sandbox_unavailable", "The guest is gone", "Start another", effects="unknown")
        gone = refused(env.read("a"), "sandbox_unavailable", effects="unknown")
        with pytest.raises(SandboxUnavailableError) as caught:
            gone.unwrap()
        assert caught.value.reason == gone.reason == "exited"


@pytest.mark.exhaustive
def test_a_local_guest_that_is_stopped_is_silent(tmp_path: Path) -> None:
    with LocalEnvironment(tmp_path) as env:
        assert env.backend.process is not None
        done(env.run("true"))
        env.backend.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        refused(env.run("true", timeout_seconds=0.5), "sandbox_unavailable", "did not answer within 2.5 s", effects="unknown")
        assert time.monotonic() - began < 30
        env.backend.process.send_signal(signal.SIGCONT)
        assert done(env.run("echo back", session=None)).output == "back\n"


def test_nothing_of_a_local_environment_is_left() -> None:
    with LocalEnvironment() as env:
        folder = Path(env.workspace)
        ran = done(env.run("setsid sleep 600 & echo $!"))
        pid = int(ran.output)
        assert Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
