"""The way past the engine into the guest's input: taken where it may be, never into anything else, and no other end than before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker import shortcut
from sandbox.docker.engine import connect
from sandbox.testing import EngineProxy

from .observing import eventually, guest_pid

SMALL = Limits(memory_bytes=256 << 20)
pytestmark = pytest.mark.engine


def takes_it(env: DockerEnvironment) -> bool:
    assert env._stream is not None
    return env._stream._input is not None


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=SMALL) as env:
        if os.geteuid() != 0:
            pytest.skip("only root may open another user's pipe")
        yield env


def test_a_sandbox_of_this_machine_has_it(sandbox: DockerEnvironment) -> None:
    assert takes_it(sandbox)
    text = "x" * 500_000
    assert sandbox.write("long.txt", text).ok
    assert sandbox.run("wc -c < long.txt").unwrap().stdout.strip() == "500000"


def inode(pid: int) -> int:
    return os.stat(f"/proc/{pid}/fd/3").st_ino


def test_nothing_else_is_opened(sandbox: DockerEnvironment, tmp_path: Path) -> None:
    pid, ident = guest_pid(sandbox), sandbox.container_id
    way = shortcut.opened(pid, ident, inode(pid))
    assert way is not None
    os.close(way)
    assert shortcut.opened(pid, "f" * 64, inode(pid)) is None  # the number is another container's
    assert shortcut.opened(pid, ident, inode(pid) + 1) is None  # not the pipe that the guest speaks of
    assert shortcut.opened(pid, ident, None) is None
    assert shortcut.opened(os.getpid(), ident, inode(pid)) is None
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert shortcut.opened(gone.pid, ident, inode(pid)) is None


def test_no_file_in_the_place_of_the_pipe_is_opened(sandbox: DockerEnvironment, tmp_path: Path) -> None:
    """A process whose group names the container, as another runtime's own process has it, and a file where the pipe would be."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    program = "import os, sys, time; os.dup2(os.open(sys.argv[1], os.O_RDWR), 3); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            group = Path(f"/proc/{other.pid}/cgroup").read_text().strip() or "0::/"
            assert shortcut.opened(other.pid, group[-3:], file.stat().st_ino) is None
        finally:
            other.kill()


def test_another_socket_of_the_engine_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineProxy() as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.address)
        with DockerEnvironment(limits=SMALL) as env:
            assert not takes_it(env)
            assert env.run("echo hi").unwrap().stdout == "hi\n"


def test_a_kept_sandbox_goes_without(tmp_path: Path) -> None:
    env = DockerEnvironment(limits=SMALL, keep=True).start()
    try:
        assert not takes_it(env)
    finally:
        env.remove()


def test_the_end_of_the_stream_alone_ends_the_guest() -> None:
    with DockerEnvironment(limits=SMALL) as env:
        assert env._stream is not None
        assert env._transport is not None
        ident = env.container_id
        env._transport.close()

        def gone() -> bool:
            try:
                connect().api.inspect_container(ident)
            except docker.errors.NotFound:
                return True
            return False

        assert eventually(gone, 10)
        assert env.run("true").to_dict()["code"] == "sandbox_unavailable"

