"""Kept sandboxes past the engine: their orchestrator is killed at any byte, replaced, or not root; the engine is restarted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.kept import attach as reaching
from sandbox.docker.kept import owners
from sandbox.docker.remover import Removal
from sandbox.errors import ErrorCode

from .observing import eventually
from .own_engine import IMAGE, ROOT, OwnEngine, running
from .test_engine_faults import _sockets_of_lost_engines, in_a_run
from .test_engine_restarts import usual
from .test_shortcut import takes_it

__all__ = ["_sockets_of_lost_engines"]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may open another user's pipe"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SMALL = Limits(memory_bytes=256 << 20)
# Attaches, and kills itself once that many bytes of its request, or of what came back, have passed.
DOOMED = """
import os, signal, sys
from sandbox import DockerEnvironment
from sandbox.docker.container.stream import AttachStream
way, left, command = sys.argv[2], int(sys.argv[3]), sys.argv[4]
env = DockerEnvironment.attach(sys.argv[1])
assert env.run("true", session=None).ok
send, receive_into = AttachStream.send, AttachStream.receive_into

def count(size):
    global left
    left -= size
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)

def doomed_send(self, data, timeout_seconds):
    sent = send(self, data[:left] if way == "up" else data, timeout_seconds)
    count(sent if way == "up" else 0)
    return sent

def doomed_receive_into(self, view):
    size = receive_into(self, view)
    count(size or 0 if way == "down" else 0)
    return size

AttachStream.send, AttachStream.receive_into = doomed_send, doomed_receive_into
env.run(command, request_id=sys.argv[5], session=None, stdin="x" * 300_000, keep_output_bytes=4 << 20)
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def kept() -> Iterator[Callable[..., DockerEnvironment]]:
    """Makes kept sandboxes, all of which are gone at the end."""
    made: list[DockerEnvironment] = []

    def make(**options: Any) -> DockerEnvironment:
        made.append(DockerEnvironment(**{"limits": SMALL, "keep": True, "keep_seconds": 120.0, **options}).start())
        return made[-1]

    yield make
    for env in made:
        env.close()
        DockerEnvironment.attach(env.container_id, take_over=True).remove()


def test_killed_at_any_byte_it_leaves_a_sandbox_that_does_each_request_once(
    kept: Callable[..., DockerEnvironment],
) -> None:
    env = kept()
    assert takes_it(env)
    env.close()
    deaths = [("up", n) for n in (1, 23, 200, 70_000, 290_000)] + [("down", n) for n in (1, 25, 90_000)]
    for n, (way, count) in enumerate(deaths):
        command = f"echo {n} >> ran; wc -c; seq 40000"
        argv = [sys.executable, "-c", DOOMED, env.container_id, way, str(count), command, f"id{n}"]
        assert subprocess.run(argv, cwd=ROOT, check=False, timeout=60).returncode == -9
        with DockerEnvironment.attach(env.container_id) as later:
            assert takes_it(later)
            options: dict[str, Any] = {"session": None, "stdin": "x" * 300_000, "keep_output_bytes": 4 << 20}
            output = later.run(command, request_id=f"id{n}", **options).unwrap().output
            assert output.startswith("300000\n")
            assert output.endswith("\n40000\n")
            assert later.run("cat ran", session=None).unwrap().output == "".join(f"{each}\n" for each in range(n + 1))


def test_the_guest_notices_that_its_orchestrator_is_dead(
    kept: Callable[..., DockerEnvironment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another user may attach at once: no lock tells it that the last owner is gone."""
    env = kept()
    env.close()
    argv = [sys.executable, "-c", DOOMED, env.container_id, "up", "50", "true", "id"]
    assert subprocess.run(argv, cwd=ROOT, check=False, timeout=60).returncode == -9
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with DockerEnvironment.attach(env.container_id) as later:
        assert later.run("echo mine").unwrap().output == "mine\n"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_orchestrators_that_are_root_and_others_take_turns(
    kept: Callable[..., DockerEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = kept()
    assert takes_it(env)
    env.close()
    for root in (False, True, False, True):
        with monkeypatch.context() as patched:
            if not root:
                patched.setattr(os, "geteuid", lambda: 1000)
            later = DockerEnvironment.attach(env.container_id)
        assert takes_it(later) is root
        assert later.run("seq 50000", keep_output_bytes=1 << 20).unwrap().output.endswith("\n50000\n")
        later.close()


def test_the_last_owner_is_told_and_leaves_it_alone(kept: Callable[..., DockerEnvironment]) -> None:
    former = kept()
    assert takes_it(former)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(former.run("sleep 60", session=None)))
    waiting.start()
    later = DockerEnvironment.attach(former.container_id, take_over=True)
    waiting.join(10)
    assert (answers[0].code, "another orchestrator" in answers[0].error) == (ErrorCode.sandbox_unavailable, True)
    assert "another orchestrator" in former.run("true").error  # type: ignore[union-attr]
    former.remove()
    assert takes_it(later)
    assert later.run("echo here").unwrap().output == "here\n"
    later.close()


def test_who_has_not_noticed_yet_does_not_remove_the_sandbox_of_another(
    kept: Callable[..., DockerEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    former = kept()
    owners.seize(former.backend.name)  # as another orchestrator does; what the guest says of it has not been read yet
    former.remove()
    assert connect().api.inspect_container(former.container_id)["State"]["Running"]


def test_what_is_left_of_a_dead_sandbox_stands_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last owner still removes it in the background when the one who left it before removes it, too."""
    env = DockerEnvironment(limits=SMALL, keep=True, keep_seconds=120.0).start()
    claimed, finish, claim = threading.Event(), Removal.finish, reaching.claimed_again

    def finish_later(removal: Removal) -> None:
        claimed.wait(60)
        finish(removal)

    def claim_again(ident: str) -> owners.Ownership | None:
        assert (state := owners.owner_of(ident)) is not None
        assert state.alive
        try:
            return claim(ident)
        finally:
            claimed.set()

    monkeypatch.setattr(Removal, "finish", finish_later)
    monkeypatch.setattr(reaching, "claimed_again", claim_again)
    env.close()
    with DockerEnvironment.attach(env.container_id) as later:
        connect().api.kill(env.container_id)
        assert later.run("true").code is ErrorCode.sandbox_unavailable  # type: ignore[union-attr]
    env.remove()
    later.close(wait=True)
    with pytest.raises(docker.errors.NotFound):
        connect().api.inspect_container(env.container_id)
    assert owners.owner_of(env.backend.name) is None


def test_a_pause_keeps_what_is_on_its_way(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept()
    assert takes_it(env)
    answers: list[Any] = []
    running_ = threading.Thread(target=lambda: answers.append(env.run("sleep 0.5; seq 40000", keep_output_bytes=1 << 20)))
    running_.start()
    assert eventually(lambda: bool(env.processes().unwrap().commands))
    env.pause()
    env.resume()
    running_.join(20)
    assert answers[0].unwrap().output.endswith("\n40000\n")
    env.pause()
    with DockerEnvironment.attach(env.container_id, take_over=True) as later:
        assert takes_it(later)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    with running(live_restore=True) as own:
        usual(own, monkeypatch)
        yield own


@pytest.mark.timeout(240)
def test_a_restart_of_the_engine_is_not_noticed(engine: OwnEngine) -> None:
    """Under live-restore. The next orchestrator finds standard input closed, and comes by the door."""

    def restart() -> None:
        engine.terminate()
        engine.start()

    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True).start()
    try:
        assert takes_it(env)
        answer, _ = in_a_run(env, restart, "echo x >> ran; sleep 2; seq 20000", 60)
        assert answer.unwrap().output.endswith("20000\n")
        assert "reconnected" not in [notice.code for notice in answer.notices]
        env.close()
        with DockerEnvironment.attach(env.container_id) as later:
            assert takes_it(later)
            assert later.run("cat ran").unwrap().output == "x\n"
            answer, _ = in_a_run(later, partial(connect().api.kill, env.container_id), "sleep 100", 60)
            assert answer.code is ErrorCode.sandbox_unavailable
    finally:
        env.remove()
