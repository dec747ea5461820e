"""A sandbox that dies says so: within 2 s, with the right reason, to everyone who waits, and nothing of it is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.container import postmortem
from sandbox.docker.engine.client import connect, is_missing
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.engine.podman import ulimits
from sandbox.errors import ErrorCode, SandboxUnavailableError

from .observing import Heartbeat, eventually, guest_pid, in_time, pause, within

pytestmark = pytest.mark.engine

MAKE = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=256 << 20)
ENDINGS: dict[str, Callable[[DockerEnvironment], None]] = {
    "killed": lambda env: connect().api.kill(env.container_id),
    "removed": lambda env: connect().api.remove_container(env.container_id, force=True),
    "guest killed": lambda env: os.kill(guest_pid(env), signal.SIGKILL),
}
REASONS = {"killed": "killed from outside", "removed": "killed from outside", "guest killed": "killed from outside"}


def exists(container_id: str) -> bool:
    try:
        connect().api.inspect_container(container_id)
    except docker.errors.APIError as error:
        if not is_missing(error):
            raise
        return False
    return True


@pytest.mark.parametrize("ending", ENDINGS)
def test_death_at_rest(docker_env: MAKE, ending: str) -> None:
    env = docker_env(limits=SMALL)
    container = env.container_id
    ENDINGS[ending](env)
    answer, _ = within(2.0, lambda: env.run("true"))
    assert answer.code is ErrorCode.sandbox_unavailable
    assert REASONS[ending] in answer.error
    for again in (
        lambda: env.read("x"),
        lambda: env.run("true"),
        lambda: env.upload(b"x", "x"),
        lambda: env.kill("c1"),
    ):
        repeated, _ = within(0.25, again)
        assert (repeated.code, repeated.error) == (answer.code, answer.error)
    within(2.0, lambda: env.close(wait=True))
    assert not exists(container)


HOARD = """
import os
memory = os.memfd_create("hoard")  # counts for the sandbox, but for no process: the guest is no worse a victim than this one
while True:
    os.write(memory, bytes(1 << 20))
"""


def test_a_guest_that_ran_out_of_memory(docker_env: MAKE) -> None:
    """Commands die first; here the host makes the guest as good a victim as they are."""
    env = docker_env(limits=Limits(memory_bytes=64 << 20))
    Path(f"/proc/{guest_pid(env)}/oom_score_adj").write_text("1000")
    env.write("hoard.py", HOARD).unwrap()
    for _ in range(8):
        answer = env.run("python3 hoard.py")
        if not answer.ok:
            break
    assert not answer.ok
    assert answer.code is ErrorCode.sandbox_unavailable, answer
    assert "out of memory" in answer.error
    assert str(64 << 20) in answer.error


def test_kept_output_cannot_use_up_the_guest(docker_env: MAKE) -> None:
    env = docker_env(limits=Limits(memory_bytes=64 << 20))
    for _ in range(8):
        answer = env.run("head -c 20000000 /dev/zero", keep_output_bytes=20_000_000).unwrap()
        assert (answer.output_bytes, answer.truncated) == (20_000_000, True)
        assert "\0" * 1_000_000 in answer.output
    with ThreadPoolExecutor(8) as pool:
        runs = [
            pool.submit(env.run, "head -c 9000000 /dev/zero", session=None, keep_output_bytes=9_000_000)
            for _ in range(8)
        ]
        assert [run.result().unwrap().output_bytes for run in runs] == [9_000_000] * 8
    assert env.run("echo still here").unwrap().output == "still here\n"


def test_a_paused_sandbox_is_said_to_be_paused(docker_env: MAKE) -> None:
    env = docker_env(limits=SMALL)
    container = env.container_id
    pause(connect(), container)
    answer, took = within(0.5 + 2.0 + 0.5, lambda: env.run("true", timeout_seconds=0.5))
    assert answer.code is ErrorCode.sandbox_unavailable
    assert "paused" in answer.error
    assert took > 2.4
    # a request that does not fit into the pipe any more has the same deadline
    answer, _ = within(0.5 + 2.0 + 0.7, lambda: env.run("wc -c", stdin=bytes(8 << 20), timeout_seconds=0.5))
    assert "paused" in answer.error
    connect().api.unpause(container)
    assert env.run("echo back").unwrap().output == "back\n"  # given up in the middle of a frame, and whole all the same
    pause(connect(), container)
    within(3.0, lambda: env.close(wait=True))
    assert not exists(container)


def test_twenty_lives_leave_nothing() -> None:
    """Neither containers nor volumes nor descriptors nor threads."""
    for _ in range(6):
        DockerEnvironment(limits=SMALL).start().close(wait=True)  # what is made once, connections to the engine too, is made now
    client = connect()
    names: list[str] = []
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    made = []
    for count in range(20):
        env = DockerEnvironment(limits=SMALL).start()
        made.append(env.container_id)
        names.append(env.backend.name)
        env.run("sleep 100 & echo x").unwrap()
        if count % 5 == 4:
            client.api.kill(env.container_id)
        env.close()
        env.close(wait=True)
    gc.collect()
    assert not [c for c in made if exists(c)]
    assert eventually(lambda: threading.active_count() <= threads)
    # Several threads may have called the engine at once.
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 4)

    mine = [{"label": f"{SANDBOX_LABEL}={name}"} for name in names]
    assert eventually(lambda: not any(client.api.volumes(filters=label).get("Volumes") for label in mine), 30)


CHILD = """
import sys, time
from sandbox import DockerEnvironment, Limits
with DockerEnvironment(limits=Limits(memory_bytes=256 << 20)) as env:
    print(env.container_id, flush=True)
    try:
        env.run("echo begun; sleep 100", on_output=lambda _, text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        answer = env.run("echo usable; pgrep -c sleep")
        print("interrupted", answer.unwrap().output.split(), flush=True)
print("closed", flush=True)
"""


@pytest.fixture
def orchestrator() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    yield child
    child.kill()
    child.communicate()


def test_a_killed_orchestrator_leaves_no_container(orchestrator: subprocess.Popen[str]) -> None:
    assert orchestrator.stdout is not None
    container = orchestrator.stdout.readline().strip()
    assert exists(container)
    assert orchestrator.stdout.readline() == "begun\n"
    orchestrator.kill()
    orchestrator.wait()
    before = time.monotonic()
    with Heartbeat() as heart:
        assert eventually(lambda: not exists(container))
    took = time.monotonic() - before
    assert in_time(took, 3.0, heart), f"still there after {took:.1f} s"


def test_ctrl_c_in_a_blocking_run(orchestrator: subprocess.Popen[str]) -> None:
    """The command ends, the sandbox is usable, and closing it leaves nothing."""
    assert orchestrator.stdout is not None
    container = orchestrator.stdout.readline().strip()
    assert orchestrator.stdout.readline() == "begun\n"
    orchestrator.send_signal(signal.SIGINT)
    said, complaints = orchestrator.communicate(timeout=10)
    assert said.split("\n")[:2] == ["interrupted ['usable', '0']", "closed"], (said, complaints)
    assert complaints == ""
    assert orchestrator.returncode == 0
    assert not exists(container)


def test_a_silent_sandbox_that_has_ended_meanwhile_is_not_said_to_keep_the_engine_waiting(docker_env: MAKE) -> None:
    """The engine had answered that the container does not run, and it was called silent."""
    api = connect().api
    image = api.inspect_container(docker_env(limits=SMALL).container_id)["Image"]
    alone = api.create_host_config(network_mode="none", ulimits=ulimits(connect(), 1024))
    ident = api.create_container(image, entrypoint=["true"], host_config=alone)["Id"]
    killed: list[bool] = []
    try:
        assert postmortem.kill_container(ident)  # it never ran
        api.start(ident)
        api.wait(ident)
        silent = SandboxUnavailableError("no_answer", "It did not answer within 3 seconds.")
        error = postmortem.end_unanswered(ident, silent, lambda: killed.append(True))
    finally:
        api.remove_container(ident)
    assert error.message == "It did not answer within 3 seconds. It has ended meanwhile."
    assert not killed
    assert postmortem.kill_container(ident)
