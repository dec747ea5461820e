"""What may happen to a container, once for real each: the answer, how soon it comes, and that nothing of the sandbox is left."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.images.runtime import ARGV
from sandbox.errors import ErrorCode

from .observing import Heartbeat, eventually, guest_pid, in_time, pause, within
from .own_engine import IMAGE, OwnEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

SMALL = Limits(memory_bytes=128 << 20, disk="memory")
ON_DISK = Limits(memory_bytes=128 << 20, disk_bytes=160 << 20)


HOARD = """
import os
memory = os.memfd_create("hoard")  # counts for the sandbox, but for no process: the guest is no worse a victim than this one
while True: os.write(memory, bytes(1 << 20))
"""


def run_out_of_memory(env: DockerEnvironment) -> None:
    """Commands die first; here the host makes the guest as good a victim as they are."""
    Path(f"/proc/{guest_pid(env)}/oom_score_adj").write_text("1000")
    hoard = shlex.join([*ARGV, "-c", HOARD])
    for _ in range(8):
        if not env.run(hoard, session=None, timeout_seconds=20).ok:
            return


FAULTS: dict[str, tuple[Callable[[DockerEnvironment], object], str]] = {
    "killed": (lambda env: connect().api.kill(env.container_id), "killed from outside"),
    "stopped": (lambda env: connect().api.stop(env.container_id), "killed from outside"),
    "removed": (lambda env: connect().api.remove_container(env.container_id, force=True), "killed from outside"),
    "guest killed": (lambda env: os.kill(guest_pid(env), signal.SIGKILL), "killed from outside"),
    "out of memory": (run_out_of_memory, f"ran out of memory (limit {128 << 20} bytes)"),
}


@pytest.mark.parametrize("limits", [SMALL, ON_DISK], ids=["memory", "ext4"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_container_that_ends(engine: OwnEngine, fault: str, limits: Limits, tmp_path: Path) -> None:
    env = DockerEnvironment(IMAGE, limits=limits).start()
    guest = guest_pid(env)
    env.write("file", "acknowledged").unwrap()
    env.download("file", to=tmp_path / "file").unwrap()
    answers: list[tuple[Any, float]] = []
    waiting = threading.Thread(target=lambda: answers.append((env.run("sleep 100"), time.monotonic())))
    waiting.start()
    time.sleep(0.3)
    inflict, words = FAULTS[fault]
    pid_gone = threading.Event()
    died: list[float] = []

    def watch() -> None:
        assert eventually(lambda: not os.path.exists(f"/proc/{guest}"), 30)
        died.append(time.monotonic())
        pid_gone.set()

    threading.Thread(target=watch).start()
    with Heartbeat() as heart:
        inflict(env)
        assert pid_gone.wait(30)
        waiting.join(60)
    assert answers, "the caller waits for ever"
    answer, at = answers[0]
    assert answer.code is ErrorCode.sandbox_unavailable
    assert words in answer.error, answer.error
    assert (answer.effects, answer.retryable) == ("unknown", False)
    print(f"seconds: {max(0.0, at - died[0]):.2f}")
    assert in_time(at - died[0], 2.0, heart)
    if fault != "removed":  # as ``docker rm -f`` does it: without the volumes
        assert engine.nothing_is_left()  # without close()
    within(2.0, lambda: env.close(wait=True))
    assert engine.nothing_is_left()
    assert (tmp_path / "file").read_text() == "acknowledged"


def upload(env: DockerEnvironment, folder: Path) -> Any:
    """An upload that takes a while: 900 MiB."""
    source = folder / "large"
    with source.open("wb") as file:
        file.truncate(900 << 20)
    return env.upload(source, "large")


MOMENTS: dict[str, Callable[[DockerEnvironment, Path], Any]] = {
    "a run": lambda env, _: env.run("echo begun; sleep 100", session="other"),
    "an upload": upload,
    "a download": lambda env, _: env.download("/workspace/large"),
    "a run in the queue": lambda env, _: env.run("echo never"),
}


@pytest.mark.parametrize(
    ("ending", "moment"), [*[("killed", m) for m in MOMENTS], ("removed", "a run"), ("guest killed", "a run")]
)
def test_death_in_the_middle(engine: OwnEngine, tmp_path: Path, ending: str, moment: str) -> None:
    env = DockerEnvironment(IMAGE, limits=Limits(memory_bytes=2 << 30, cpus=0.3)).start()  # slow, so that there is a middle
    env.run("truncate -s 600M large; echo > small").unwrap()
    answers: list[tuple[Any, float]] = []
    waiting = [
        threading.Thread(target=lambda: env.run("sleep 100")),
        threading.Thread(target=lambda: answers.append((env.run("sleep 100", session=None), time.monotonic()))),
        threading.Thread(target=lambda: answers.append((MOMENTS[moment](env, tmp_path), time.monotonic()))),
    ]

    def running(count: int) -> bool:
        return count == sum(each.running for each in env.processes().unwrap().commands)

    for count, thread in enumerate(waiting, 1):
        thread.start()
        if moment == "a run" or thread is not waiting[-1]:
            assert eventually(functools.partial(running, count))
    time.sleep(0.1)
    inflict, words = FAULTS[ending]
    died = time.monotonic()
    with Heartbeat() as heart:
        inflict(env)
        for thread in waiting:
            thread.join(60)
    assert len(answers) == 2, "somebody waits for ever"
    for answer, at in answers:
        assert not answer.ok
        assert answer.code is ErrorCode.sandbox_unavailable, answer
        assert words in answer.error
        assert in_time(at - died, 2.0, heart)
        assert answer.effects == "unknown"
    env.close()
    assert engine.nothing_is_left()


def test_a_command_that_runs_out_of_memory(engine: OwnEngine) -> None:
    """The command is the victim, and said to be; the sandbox lives on with all its files."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.write("file", "acknowledged").unwrap()
        answer = env.run("tail /dev/zero")
        assert answer.unwrap().oom_killed
        assert [n.code for n in answer.notices] == ["out_of_memory"]
        assert env.read("file").unwrap().content == "acknowledged"
    assert engine.nothing_is_left()


def test_a_container_that_is_paused(engine: OwnEngine) -> None:
    """Said to be paused, in time; unpaused, it goes on with everything it had, and no timeout is missed meanwhile."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.write("file", "acknowledged").unwrap()
        going = env.run("sleep 0.5; echo went on", background=True).unwrap().id
        pause(connect(), env.container_id)
        answer, took = within(0.5 + 2.0 + 0.5, lambda: env.run("true", timeout_seconds=0.5))
        print(f"seconds: {took:.2f}")
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "is paused" in answer.error
        assert "Unpause it" in answer.hint
        connect().api.unpause(env.container_id)
        assert env.read("file").unwrap().content == "acknowledged"
        assert eventually(lambda: env.logs(going).unwrap().content == "went on\n")
        pause(connect(), env.container_id)
        within(3.0, lambda: env.close(wait=True))
    assert engine.nothing_is_left()


def test_paused_for_longer_than_its_lease(engine: OwnEngine) -> None:
    """The host went on speaking: the guest finds that in its pipe before it looks at the clock."""
    with DockerEnvironment(IMAGE, limits=Limits(memory_bytes=128 << 20, lease_seconds=3.0)) as env:
        pause(connect(), env.container_id)
        time.sleep(4.5)
        connect().api.unpause(env.container_id)
        assert env.run("echo still here").unwrap().output == "still here\n"
    assert engine.nothing_is_left()
