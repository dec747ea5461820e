"""Nothing is left behind by an orchestrator that ends between creating and starting a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import docker
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.container import create as container
from sandbox.docker.container import removal
from sandbox.docker.engine.client import connect
from sandbox.docker.images.runtime import ensure_runtime, forget_runtime
from sandbox.docker.kept import labels as marks
from sandbox.docker.kept import orphans

from .observing import eventually
from .own_engine import IMAGE, IN_A_PROCESS, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

SMALL = Limits(memory_bytes=128 << 20)
DIE_BEFORE_START = (
    IN_A_PROCESS
    + """
import os, signal, sys
from docker.api.container import ContainerApiMixin
ContainerApiMixin.start = lambda *_: (print("created", flush=True), os.kill(os.getpid(), signal.SIGKILL))
DockerEnvironment(IMAGE).start()
"""
)


def unstarted(pid: int) -> list[str]:
    labels = [f"{marks.PID_LABEL}={pid}"]
    found = connect().api.containers(all=True, filters={"status": "created", "label": labels})
    return [one["Id"] for one in found]


def test_a_container_that_a_killed_orchestrator_never_started_is_swept() -> None:
    ensure_runtime(connect(), report=print)  # its making starts a container as well
    dying = subprocess.Popen([sys.executable, "-c", DIE_BEFORE_START], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert dying.communicate(timeout=60)[0] == "created\n"
    assert dying.returncode == -signal.SIGKILL
    assert unstarted(dying.pid)
    orphans._swept.clear()
    with DockerEnvironment(IMAGE, limits=SMALL):
        assert unstarted(dying.pid) == []


def test_the_unstarted_container_of_a_living_orchestrator_stays() -> None:
    client = connect()
    name = f"gamebox-{uuid.uuid4().hex[:16]}"
    labels = container.labels(name) | {marks.PID_LABEL: "1"}
    made = client.api.create_container(IMAGE, ["true"], name=name, labels=labels)
    try:
        orphans._swept.clear()
        with DockerEnvironment(IMAGE, limits=SMALL):
            assert client.api.inspect_container(made["Id"])["State"]["Status"] == "created"
    finally:
        client.api.remove_container(made["Id"], force=True)


def test_a_create_that_was_interrupted_and_is_carried_out_later_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Ctrl-C in the middle of the create does: the engine goes on with it."""
    later: list[subprocess.Popen[bytes]] = []

    def interrupted(client: docker.DockerClient, image_id: str, name: str, *_: object) -> str:
        create = [
            "docker",
            "create",
            "--name",
            name,
            "--label",
            f"{marks.PID_LABEL}={os.getpid()}",
            IMAGE,
            "true",
        ]
        later.append(subprocess.Popen(["sh", "-c", 'sleep 0.3; exec "$@"', "sh", *create], stdout=subprocess.DEVNULL))
        raise KeyboardInterrupt

    monkeypatch.setattr(container, "create", interrupted)
    monkeypatch.setattr(removal, "CREATE_SECONDS", 30)
    with pytest.raises(KeyboardInterrupt):
        DockerEnvironment(IMAGE, limits=SMALL).start()
    assert later[0].wait(30) == 0
    assert eventually(lambda: unstarted(os.getpid()) == [])


def test_a_runtime_volume_removed_behind_our_back_is_made_again() -> None:
    client = connect()
    name = ensure_runtime(client, report=print).name
    # A container that another test has ended may go only now.
    assert eventually(lambda: _is_removed(client, name))
    client.api.remove_volume(f"{name}-verified")
    started = time.monotonic()
    try:
        with DockerEnvironment(IMAGE, limits=SMALL) as env:
            assert env.run("echo back").unwrap().output == "back\n"
    finally:
        forget_runtime(client)
    assert time.monotonic() - started < 60


def _is_removed(client: docker.DockerClient, volume: str) -> bool:
    try:
        client.api.remove_volume(volume)
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
        return False
    return True
