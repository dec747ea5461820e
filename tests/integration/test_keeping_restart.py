"""An engine of the test's own is restarted under a kept sandbox in use: with live-restore callers see a notice and some time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.kept import attach as reaching
from sandbox.docker.kept import orphans
from sandbox.errors import ErrorCode

from .observing import eventually, in_workspace
from .own_engine import IMAGE, OwnEngine, running
from .test_engine_faults import _sockets_of_lost_engines, in_a_run

__all__ = ["_sockets_of_lost_engines"]

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

SMALL = Limits(memory_bytes=256 << 20)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OwnEngine]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with running(live_restore=True) as own:
        yield own


def restart(engine: OwnEngine, *, kill: bool) -> None:
    if kill:
        engine.kill()
    else:
        engine.terminate()
    engine.start()


@pytest.mark.timeout(240)
def test_a_kept_sandbox_lives_through_restarts_of_its_engine(
    engine: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A daemon that was killed leaves its containerd, and the next one needs 20 to 40 s until it has got over that.
    monkeypatch.setattr(reaching, "RECONNECT_SECONDS", 90.0)
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True).start()

    def restart_and_go_on(*, kill: bool) -> None:
        restart(engine, kill=kill)
        go.touch()

    try:
        go = in_workspace(env, "go")
        for kill in (False, True):
            began = time.monotonic()
            command = "echo x >> ran; until [ -e go ]; do sleep 0.05; done; rm go; seq 20000"
            answer, took = in_a_run(env, partial(restart_and_go_on, kill=kill), command, 60)
            assert answer.ok, answer
            assert answer.result.output.endswith("20000\n")
            assert "reconnected" in [notice.code for notice in answer.notices]
            print(
                f"kill={kill}: answered {took:.1f} s after the restart began, {time.monotonic() - began:.1f} s in all"
            )
        assert env.run("cat ran").unwrap().output == "x\nx\n"
        restart(engine, kill=False)
        assert env.run("echo idle").unwrap().output == "idle\n"
        env.close()
        restart(engine, kill=False)
        with DockerEnvironment.attach(env.container_id) as later:
            assert later.run("wc -l < ran").unwrap().output.strip() == "2"
    finally:
        env.remove()


@pytest.mark.timeout(240)
def test_the_guest_keeps_its_deadline_while_the_engine_is_away(
    engine: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "RECONNECT_SECONDS", 3.0)
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True, keep_seconds=3.0).start()
    guest = connect().api.inspect_container(env.container_id)["State"]["Pid"]
    engine.kill()
    assert Path(f"/proc/{guest}").exists(), "the sandbox outlives its engine"
    assert eventually(lambda: not Path(f"/proc/{guest}").exists(), 12.0)
    answer = env.run("true")
    assert answer.code is ErrorCode.sandbox_unavailable  # type: ignore[union-attr]
    env.close()
    restart(engine, kill=True)
    orphans._swept.clear()
    orphans.sweep(connect())
    assert connect().api.containers(all=True) == [], "its remains are removed by the next that comes"
