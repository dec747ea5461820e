"""Kept sandboxes, on an engine of the test's own: they outlive their orchestrator, and a cut is not seen by callers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect, is_missing
from sandbox.docker.images.runtime import ARGV
from sandbox.docker.kept import attach as reaching
from sandbox.docker.kept import inventory, orphans, owners
from sandbox.docker.kept import labels as marks
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import EngineProxy, Faults
from tests.leaks import descriptors, left_open

from .observing import Heartbeat, eventually, in_time, in_workspace, pause, within
from .own_engine import IMAGE, IN_A_PROCESS, ROOT, OwnEngine
from .test_engine_faults import _sockets_of_lost_engines, in_a_run

__all__ = ["_sockets_of_lost_engines"]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SMALL = Limits(memory_bytes=256 << 20)
ORCHESTRATOR = (
    IN_A_PROCESS
    + """
import sys, time
env = DockerEnvironment(IMAGE, limits=Limits(memory_bytes=256 << 20), keep=True, keep_seconds=float(sys.argv[1])).start()
env.run("export MARK=left; cd /tmp").unwrap()
late = env.run("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done", background=True).unwrap().id
print(env.container_id, late, flush=True)
command = f"echo begun; sleep {sys.argv[2]}; echo done > /workspace/done"
answer = env.run(command, timeout_seconds=120, on_output=lambda stream, text: print(text, end="", flush=True))
print("answered", answer.ok, flush=True)
time.sleep(60)
"""
)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def proxy(engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    with EngineProxy(engine.address) as made:
        monkeypatch.setenv("DOCKER_HOST", made.address)
        yield made


@pytest.fixture
def kept(engine: OwnEngine) -> Iterator[Callable[..., DockerEnvironment]]:
    """Makes kept sandboxes, all of which are gone at the end."""
    made: list[DockerEnvironment] = []

    def make(**options: Any) -> DockerEnvironment:
        made.append(
            DockerEnvironment(IMAGE, **{"limits": SMALL, "keep": True, "keep_seconds": 120.0, **options}).start()
        )
        return made[-1]

    yield make
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DOCKER_HOST", engine.address)  # a test's proxy is closed by now
        for env in made:
            env.close()
            for each in inventory.sandboxes(docker_here(), every=True):
                if each.id == env.backend.container_id:
                    inventory.remove(each, force=True)


def docker_here() -> docker.DockerClient:
    """The engine itself, whatever proxy the test stands behind."""
    return made_clients[0]


made_clients: list[docker.DockerClient] = []


@pytest.fixture(scope="module", autouse=True)
def _client(engine: OwnEngine) -> Iterator[None]:
    made_clients.append(docker.DockerClient(base_url=engine.address))
    yield
    made_clients.pop().close()


def gone(ident: str) -> bool:
    try:
        docker_here().api.inspect_container(ident)
    except docker.errors.APIError as error:
        if not is_missing(error):
            raise
        return True
    return False


def in_a_process(source: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", source, *args], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def orchestrator(keep_seconds: float = 120.0, run_seconds: float = 2.0) -> tuple[subprocess.Popen[str], str, str]:
    """Another process with a kept sandbox in the middle of a run: (process, container, id of a background command)."""
    process = in_a_process(ORCHESTRATOR, str(keep_seconds), str(run_seconds))
    assert process.stdout is not None
    ident, late = process.stdout.readline().split()
    assert process.stdout.readline() == "begun\n"
    return process, ident, late


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_killed_orchestrator_leaves_everything_to_the_next() -> None:
    process, ident, late = orchestrator(run_seconds=3.0)
    end(process)
    env = DockerEnvironment.attach(ident[:12])
    try:
        assert env.limits == SMALL
        assert env.image == IMAGE
        told: set[str] = set()

        def run(command: str, session: str | None) -> str:
            answer = env.run(command, session=session)
            told.update(notice.message.split()[2] for notice in answer.notices if notice.code == "command_ended")
            return answer.unwrap().output

        assert run("echo $MARK $PWD", "default") == "left /tmp\n", "waits for the run that was under way"
        assert eventually(lambda: run("true", None) or (late in told and len(told) >= 2), 15.0), told
        logs = env.logs(late, offset=len("line 1\n")).unwrap()
        assert logs.content == "".join(f"line {n}\n" for n in range(2, 7))
        assert env.read("/workspace/done").unwrap().content == "done\n"
    finally:
        env.remove()
    assert gone(ident)
    assert owners.owner_of(env.backend.name) is None


def test_an_owner_is_respected_and_can_be_replaced(kept: Callable[..., DockerEnvironment]) -> None:
    process, ident, _ = orchestrator(run_seconds=100)  # it is still under way at the take-over, however late that is
    try:
        with pytest.raises(SandboxError) as refused:
            DockerEnvironment.attach(ident)
        assert refused.value.code is ErrorCode.sandbox_owned
        assert f"process {process.pid}" in refused.value.message
        at = time.monotonic()
        mine = DockerEnvironment.attach(ident, take_over=True)
        assert mine.run("echo mine", session=None).unwrap().output == "mine\n"
        assert process.stdout is not None
        assert process.stdout.readline() == "answered False\n"
        print(f"seconds: {time.monotonic() - at:.2f}")  # from the take-over to the end of the first owner's run
        with pytest.raises(SandboxError) as refused:
            DockerEnvironment.attach(ident)
        assert f"process {os.getpid()}" in refused.value.message
    finally:
        end(process)
    assert mine.run("echo still", session=None).unwrap().output == "still\n"
    mine.remove()
    assert gone(ident)


def test_one_that_was_taken_over_is_left_alone_by_its_last_owner(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept()
    taker = DockerEnvironment.attach(env.container_id, take_over=True)
    answer = env.run("true")
    assert not answer.ok
    assert "another orchestrator" in answer.error
    env.remove()
    assert taker.run("echo here").unwrap().output == "here\n"
    taker.remove()


def test_an_owner_of_another_user_is_respected_by_the_guest(
    kept: Callable[..., DockerEnvironment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = kept()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(reaching, "ANSWER_SECONDS", 0.5)
    with pytest.raises(SandboxError) as refused:
        DockerEnvironment.attach(env.container_id)
    assert refused.value.code is ErrorCode.sandbox_owned
    assert env.run("echo mine").unwrap().output == "mine\n"
    env.close()
    with DockerEnvironment.attach(env.container_id) as later:
        assert later.run("echo later").unwrap().output == "later\n"


def test_a_stopped_orchestrator_finds_its_sandbox_taken_over_or_its_own(kept: Callable[..., DockerEnvironment]) -> None:
    process, ident, _ = orchestrator(run_seconds=100)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(1)
        taker = DockerEnvironment.attach(ident, take_over=True)
        assert taker.run("echo taken", session=None).unwrap().output == "taken\n"
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == "answered False\n"
        assert taker.run("echo mine", session=None).unwrap().output == "mine\n"
        taker.remove()
    finally:
        end(process)
    process, ident, _ = orchestrator()
    try:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == "answered True\n"
    finally:
        end(process)
        DockerEnvironment.attach(ident).remove()


def test_the_guest_ends_it_when_nobody_comes() -> None:
    process, ident, _ = orchestrator(keep_seconds=6.0)  # which the owner may be late in a machine under load
    volumes = [m["Name"] for m in docker_here().api.inspect_container(ident)["Mounts"] if m.get("Driver") and m["RW"]]
    time.sleep(8.0)
    assert not gone(ident), "its owner is there"
    ended = time.monotonic()
    end(process)
    assert eventually(lambda: gone(ident), 20.0)
    print(f"seconds: {time.monotonic() - ended:.2f} of 6")
    assert time.monotonic() - ended > 3.0
    assert eventually(lambda: not {v["Name"] for v in docker_here().api.volumes()["Volumes"] or []} & set(volumes))
    with pytest.raises(SandboxError) as missing:
        DockerEnvironment.attach(ident)
    assert missing.value.code is ErrorCode.sandbox_not_found


@pytest.mark.parametrize("count", [0, 3, 50, 5000])
def test_a_cut_is_not_seen_by_callers(kept: Callable[..., DockerEnvironment], proxy: EngineProxy, count: int) -> None:
    env = kept()
    go = in_workspace(env, "go")

    def fault() -> None:
        if not count:
            proxy.cut("attach")
        else:
            proxy.inject(Faults(cut_after_bytes=count), "attach")
        go.touch()
        if count:
            healed.start()

    healed = threading.Timer(2.0, proxy.heal)
    answer, took = in_a_run(env, fault, "echo x >> ran; until [ -e go ]; do sleep 0.05; done; seq 100000", 30)
    print(f"seconds: {took:.2f}, of which the cut takes {2.0 if count else 0.0}")
    assert answer.ok, answer
    assert answer.result.output.endswith("100000\n")
    assert "reconnected" in [n.code for n in answer.notices]
    assert env.run("cat ran").unwrap().output == "x\n"
    if count:
        healed.join()
    env.remove()


def test_a_cut_while_bytes_go_up(kept: Callable[..., DockerEnvironment], proxy: EngineProxy) -> None:
    env = kept()
    for n in range(6):
        cutter = threading.Timer(0.002 * n, lambda: proxy.cut("attach"))
        cutter.start()
        answer = env.run("wc -c; echo x >> ran", stdin="line\n" * 1_000_000)
        cutter.join()
        env.run("true").unwrap()  # the cut may have come after the answer
        assert answer.unwrap().output == "5000000\n"
    assert env.run("wc -l < ran").unwrap().output == "6\n"
    cutter = threading.Timer(0.05, lambda: proxy.cut("attach"))
    cutter.start()
    sent = env.upload(bytes(200 << 20), "big") if env.limits.transfer_bytes < 0 else env.upload(bytes(60 << 20), "big")
    cutter.join()
    env.run("true").unwrap()
    assert sent.ok or (sent.code is ErrorCode.transfer_incomplete and sent.retryable)
    assert env.upload(bytes(1 << 20), "small").ok
    env.remove()


def test_an_engine_that_stays_away(
    kept: Callable[..., DockerEnvironment], proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "RECONNECT_SECONDS", 2.0)
    env = kept(name="stays-away")
    with Heartbeat() as heart:
        answer, took = in_a_run(env, proxy.close, "sleep 100", 30)
    assert answer.code is ErrorCode.sandbox_unavailable
    assert "attach('stays-away')" in answer.hint
    assert took > 1.5
    assert in_time(took, 2.0 + 3.0, heart)
    within(3.0, env.close)
    assert not gone(env.container_id)


def test_the_death_of_the_container_is_told_at_once(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept()
    with Heartbeat() as heart:
        answer, took = in_a_run(env, lambda: docker_here().api.kill(env.container_id), "sleep 100", 30)
    assert answer.code is ErrorCode.sandbox_unavailable
    assert "killed from outside" in answer.error
    assert in_time(took, 2.0, heart)


def test_a_stopped_orchestrator_that_holds_up_the_output_can_be_replaced(
    kept: Callable[..., DockerEnvironment],
) -> None:
    """The engine waits for it with all that the sandbox says; the taker comes in by the door."""
    source = """
env = DockerEnvironment(IMAGE, limits=Limits(memory_bytes=256 << 20), keep=True).start()
print(env.container_id, flush=True)
print(env.run("yes", timeout_seconds=60, on_output=lambda stream, text: None).error, flush=True)
"""
    process = in_a_process(IN_A_PROCESS + source)
    try:
        assert process.stdout is not None
        ident = process.stdout.readline().strip()
        time.sleep(1)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1)
        taker = DockerEnvironment.attach(ident, take_over=True)
        assert taker.run("echo taken", session=None).unwrap().output == "taken\n"
        big = taker.run("seq 300000", session=None, keep_output_bytes=4 << 20).unwrap()
        assert big.output.endswith("300000\n")
        os.kill(process.pid, signal.SIGCONT)
        assert "another orchestrator" in process.stdout.readline()
        assert taker.run("echo mine", session=None).unwrap().output == "mine\n"
        taker.close()
        with DockerEnvironment.attach(ident) as later:
            assert later.run("echo later", session=None).unwrap().output == "later\n"
            later.remove()
    finally:
        end(process)
    assert gone(ident)


@pytest.mark.parametrize("profile", ["default", "root"])
def test_nobody_inside_gets_through_the_door(kept: Callable[..., DockerEnvironment], profile: str) -> None:
    env = kept(profile=profile)
    probe = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.settimeout(3)\n"
        "s.connect('\\0gamebox-door')\n"
        "try:\n    socket.send_fds(s, [b'relay'], [0, 1]); print('answer', s.recv(1))\n"
        "except OSError as error:\n    print('closed', type(error).__name__)\n"
    )
    for _ in range(6):
        answer = env.run(argv=[*ARGV, "-c", probe]).unwrap()
        assert answer.output in ("answer b''\n", "closed BrokenPipeError\n", "closed ConnectionResetError\n"), (
            answer.output
        )
    assert env.run("echo here").unwrap().output == "here\n"


# --- pause ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_a_pause_does_not_count(keep: bool) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=keep).start()
    try:
        answers: list[Any] = []
        command = "touch begun; until [ -e go ]; do sleep 0.05; done; echo done"
        thread = threading.Thread(target=lambda: answers.append(env.run(command, timeout_seconds=4.0)))
        thread.start()
        assert eventually(lambda: env.stat("begun").ok)
        env.pause()
        env.pause()
        refused, _ = within(0.1, lambda: env.run("true"))
        assert refused.code is ErrorCode.sandbox_paused
        assert "resume()" in refused.hint
        assert env.upload(b"x", "x").code is ErrorCode.sandbox_paused  # type: ignore[union-attr]
        time.sleep(6.5)  # the host gives up 2 s after the deadline
        assert not answers
        env.resume()
        env.resume()
        env.write("go", "").unwrap()
        thread.join(10)
        assert answers[0].unwrap().output == "done\n"
        assert env.run("sleep 5", timeout_seconds=0.5).code is ErrorCode.timeout  # type: ignore[union-attr]
    finally:
        env.remove()


def test_a_paused_sandbox_can_be_closed_and_a_kept_one_then_runs_on(kept: Callable[..., DockerEnvironment]) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL).start()
    env.pause()
    env.close(wait=True)
    assert gone(env.container_id)
    env = kept()
    env.pause()
    env.close()
    assert docker_here().api.inspect_container(env.container_id)["State"]["Status"] == "running"
    pause(docker_here(), env.container_id)
    with DockerEnvironment.attach(env.container_id) as later:
        assert later.run("echo awake").unwrap().output == "awake\n"


def test_a_long_pause_is_not_taken_for_the_end_of_a_host(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept(keep_seconds=4.0)
    env.pause()
    time.sleep(7)
    env.resume()
    assert env.run("echo awake").unwrap().output == "awake\n"


# --- others' sandboxes ------------------------------------------------------------------------------------------------------


def test_the_sweep_takes_paused_ones_of_the_dead_and_no_others(kept: Callable[..., DockerEnvironment]) -> None:
    mine = kept()
    mine.pause()
    source = "e = DockerEnvironment(IMAGE).start(); e.pause(); print(e.container_id, flush=True)"
    process = in_a_process(f"{IN_A_PROCESS}{source}; import time; time.sleep(60)")
    assert process.stdout is not None
    ident = process.stdout.readline().strip()

    def sweep() -> None:
        orphans._swept.clear()
        orphans.sweep(connect())

    sweep()
    assert not gone(ident)
    end(process)
    assert not gone(ident), "paused, it cannot end by itself"
    sweep()
    assert eventually(lambda: gone(ident), 10)
    assert not gone(mine.container_id)
    assert docker_here().api.inspect_container(mine.container_id)["State"]["Paused"]
    mine.resume()


def test_a_kept_one_that_was_left_paused_is_woken_and_ends(
    kept: Callable[..., DockerEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is woken after one second. The 3 s are the time that the guest leaves for the pause.
    monkeypatch.setattr(orphans, "MARGIN_SECONDS", -2.0)
    process, ident, _ = orchestrator(keep_seconds=3.0)
    pause(docker_here(), ident)
    end(process)

    def sweep() -> None:
        orphans._swept.clear()
        orphans.sweep(connect())

    sweep()
    assert docker_here().api.inspect_container(ident)["State"]["Paused"], "nobody knows yet for how long it was left"
    time.sleep(1.2)
    sweep()
    assert eventually(lambda: gone(ident), 10.0)


def test_names_are_unique_and_wrong_ones_refused(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept(name="twice")
    with pytest.raises(SandboxError, match="already"):
        kept(name="twice")
    assert env.run("true").ok
    with pytest.raises(SandboxError, match="not a valid name"):
        DockerEnvironment(IMAGE, keep=True, name="a b")
    with pytest.raises(SandboxError, match="keep_seconds"):
        DockerEnvironment(IMAGE, keep=True, keep_seconds=0)
    with DockerEnvironment(IMAGE, limits=SMALL) as ordinary, pytest.raises(SandboxError, match="not kept"):
        DockerEnvironment.attach(ordinary.container_id)


def test_fifty_hosts_leave_no_descriptor_and_no_thread(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept()
    env.run("echo x > x")
    env.close()

    def cycle() -> None:
        with DockerEnvironment.attach(env.container_id) as later:
            assert later.read("x").ok

    guest = Path(f"/proc/{docker_here().api.inspect_container(env.container_id)['State']['Pid']}")
    for _ in range(3):
        cycle()
    before, threads = descriptors(), set(threading.enumerate())
    fds, tasks = len(os.listdir(guest / "fd")), len(os.listdir(guest / "task"))
    for _ in range(50):
        cycle()
    assert left_open(before, 5) == []
    assert eventually(lambda: set(threading.enumerate()) <= threads)
    assert eventually(lambda: len(os.listdir(guest / "fd")) <= fds)  # by the door, the last ones are closed a moment later
    assert eventually(lambda: len(os.listdir(guest / "task")) <= tasks)  # its workers come and go


def test_labels_are_enough_to_tell_whose_it_is(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept(name="mine")
    (listed,) = [each for each in inventory.sandboxes(connect()) if each.id == env.container_id]
    assert (listed.name, listed.state, listed.owner_pid, listed.kept) == ("mine", "owned", os.getpid(), True)
    with pytest.raises(SandboxError) as refused:
        inventory.remove(listed)
    assert refused.value.code is ErrorCode.sandbox_owned
    env.close()
    (listed,) = [each for each in inventory.sandboxes(connect()) if each.id == env.container_id]
    assert listed.state == "detached"
    assert listed.deadline_left_seconds is not None
    assert 100 < listed.deadline_left_seconds <= 120
    inventory.remove(listed)
    assert gone(env.container_id)
    assert marks.PID_LABEL == "dev.gamebox.pid"


def test_a_closed_owner_does_not_end_it_for_the_next(kept: Callable[..., DockerEnvironment]) -> None:
    first = kept()
    first.close()
    second = DockerEnvironment.attach(first.container_id)
    with pytest.raises(SandboxError) as refused:
        first.remove()
    assert refused.value.code is ErrorCode.sandbox_owned
    assert second.run("echo lives").unwrap().output == "lives\n"
    second.close()
    first.remove()
    assert gone(first.container_id)


def test_what_only_its_maker_knows_is_said_after_an_attach(kept: Callable[..., DockerEnvironment]) -> None:
    kept(env={"FOO": "bar"}, name="with-env").close()
    later = DockerEnvironment.attach("with-env")
    assert later.changes().code is ErrorCode.checkpoint_not_found  # type: ignore[union-attr]
    forked = later.fork(1)
    assert (forked.ok, forked.code) == (False, ErrorCode.operation_not_supported)  # type: ignore[union-attr]
    assert "env" in forked.error  # type: ignore[union-attr]
    later.remove()


def test_time_without_an_orchestrator_is_not_idle(kept: Callable[..., DockerEnvironment]) -> None:
    env = kept(limits=Limits(memory_bytes=256 << 20, idle_seconds=4.0))
    env.close()
    time.sleep(6)
    with DockerEnvironment.attach(env.container_id) as later:
        assert later.run("echo there").unwrap().output == "there\n"
