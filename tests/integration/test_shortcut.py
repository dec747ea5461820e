"""The way past the engine into the guest's input: taken where it may be, never into anything else, and no other end than before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker import backend
from sandbox.docker.container import shortcut
from sandbox.docker.engine.client import connect
from sandbox.testing import EngineProxy
from tests.leaks import descriptors, left_open

from .observing import eventually, guest_pid

SMALL = Limits(memory_bytes=256 << 20)
pytestmark = pytest.mark.engine


def takes_it(env: DockerEnvironment) -> bool:
    assert env.run("true").ok  # what is answered after the greeting comes the new way, if there is one
    stream = env.backend.stream
    assert stream is not None
    assert (stream._input is None) == (stream._output is None)
    return stream._input is not None


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
    assert sandbox.run("cat long.txt", keep_output_bytes=1 << 20).unwrap().stdout == text


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_else_is_opened(monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    offered: list[Any] = []
    monkeypatch.setattr(backend, "take_shortcut", lambda pid, ident, pipes, *_: offered.append(pipes))
    with EngineProxy() as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.address)
        env = DockerEnvironment(limits=SMALL, keep=keep).start()
        try:
            pid, pipes, ident = guest_pid(env), offered[0], env.container_id
            (_, into), (_, out_of) = pipes
            found = shortcut.open_guest_pipes(pid, ident, pipes)
            assert found is not None
            for each in found:
                os.close(each)
            assert shortcut.open_guest_pipes(pid, "f" * 64, pipes) is None  # the number is another container's
            # Not the pipes that the guest speaks of.
            assert shortcut.open_guest_pipes(pid, ident, [[pipes[0][0], out_of], [pipes[1][0], into]]) is None
            assert shortcut.open_guest_pipes(pid, ident, [pipes[0], pipes[0]]) is None
            for wrong in (None, 3, [], [pipes[0]], [into, out_of], [pipes[0], None], [pipes[0], ["5", out_of]], [[-1, into]] * 2):
                assert shortcut.open_guest_pipes(pid, ident, wrong) is None
            assert shortcut.open_guest_pipes(os.getpid(), ident, pipes) is None
            with subprocess.Popen(["true"]) as gone:
                gone.wait()
            assert shortcut.open_guest_pipes(gone.pid, ident, pipes) is None
            before = descriptors()
            for _ in range(20):
                shortcut.open_guest_pipes(pid, ident, [pipes[0], [pipes[1][0], 1]])
            assert left_open(before, 5) == []
            assert env.run("echo hi").unwrap().stdout == "hi\n"
        finally:
            env.remove()


@pytest.mark.parametrize("kind", ["file", "named pipe"])
def test_no_file_in_the_place_of_a_pipe_is_opened(kind: str, tmp_path: Path) -> None:
    """A process whose group names the container, as another runtime's own process has it, and files where the pipes would be."""
    file = tmp_path / "file"
    file.write_bytes(b"") if kind == "file" else os.mkfifo(file)
    program = "import os, sys, time\nfor n in 3, 5: os.dup2(os.open(sys.argv[1], 2), n)\nprint(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            group = Path(f"/proc/{other.pid}/cgroup").read_text().strip()
            pipes = [[number, os.stat(f"/proc/{other.pid}/fd/{number}").st_ino] for number in (3, 5)]
            assert shortcut.open_guest_pipes(other.pid, group[-3:], pipes) is None
        finally:
            other.kill()


def test_another_socket_of_the_engine_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineProxy() as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.address)
        with DockerEnvironment(limits=SMALL) as env:
            assert not takes_it(env)
            assert env.run("echo hi").unwrap().stdout == "hi\n"


def test_the_end_of_the_stream_alone_ends_the_guest() -> None:
    with DockerEnvironment(limits=SMALL) as env:
        assert env.backend.stream is not None
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

