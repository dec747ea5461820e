"""Forwarded ports through what happens to a sandbox: its end, a pause, another owner; and on the command line."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, Network
from sandbox.network.forward import Forward
from tests.programs import run_gamebox

from .observing import eventually

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=512 << 20)
Make = Callable[..., DockerEnvironment]


def serve(env: DockerEnvironment, port: int = 8000) -> Forward:
    env.write("page", "hello").unwrap()
    env.run(f"exec python3 -m http.server {port} --bind 127.0.0.1", background=True).unwrap()
    env.wait_for_port(port).unwrap()
    return env.forward(port).unwrap()


def page(forward: Forward) -> str:
    with urllib.request.urlopen(f"{forward.url}/page", timeout=20) as answer:
        return str(answer.read().decode())


def test_it_needs_no_network_and_ends_with_the_sandbox(docker_env: Make) -> None:
    others = set(threading.enumerate())
    env = docker_env(limits=SMALL, network=Network.none())
    forwards = [serve(env, port) for port in (8000, 8001, 80)]  # 80: no right is needed for it in here
    assert [page(forward) for forward in forwards] == ["hello"] * 3
    with socket.create_connection((forwards[0].host, forwards[0].port)) as open_one:
        env.close()
        with contextlib.suppress(ConnectionResetError):
            assert open_one.recv(1) == b""
    for forward in forwards:
        assert forward.closed
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((forward.host, forward.port))
    assert not [t for t in set(threading.enumerate()) - others if t.name == "gamebox-streams"]


def test_the_proxy_is_no_server_of_a_command(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    env.run("exec sleep 60", background=True).unwrap()
    assert "server_listening" not in [notice.code for notice in env.run("sleep 0.1").notices]


def test_a_pause_holds_it_up(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    forward = serve(env)
    env.pause()
    got: list[str] = []
    asking = threading.Thread(target=lambda: got.append(page(forward)))
    asking.start()
    time.sleep(0.5)
    assert not got
    env.resume()
    asking.join(20)
    assert got == ["hello"]


def test_who_attaches_opens_ports_of_its_own(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, keep=True, keep_seconds=60.0)
    attached: list[DockerEnvironment] = []
    try:
        forward = serve(env)
        assert page(forward) == "hello"
        env.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((forward.host, forward.port))
        attached.append(DockerEnvironment.attach(env.container_id))
        assert attached[0].forwards() == ()
        assert page(attached[0].forward(8000).unwrap()) == "hello"
    finally:
        (attached or [env])[0].remove()


def test_it_goes_on_after_the_connection_to_a_kept_sandbox_was_cut(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, keep=True, keep_seconds=60.0)
    try:
        forward = serve(env)
        with socket.create_connection((forward.host, forward.port)) as standing:
            standing.sendall(b"GET /page HTTP/1.1\r\n")
            assert env.backend.stream is not None
            env.backend.stream.close()
            with contextlib.suppress(ConnectionResetError):
                assert standing.recv(1) == b""
        assert env.run("true").ok
        assert eventually(lambda: env.forwards() == (forward,))
        assert page(forward) == "hello"
    finally:
        env.remove()


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("hello")
    command = [
        sys.executable,
        "-c",
        "from agent.cli.app import main; main()",
        "run",
        "--workspace",
        str(tmp_path),
        "--forward",
        "8000",
    ]
    command += ["--forward", "8001", "--", "python3", "-m", "http.server", "8000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        url = next(line.split()[-1] for line in lines if line.startswith("port 8000: "))
        assert next(lines).startswith("port 8001: http://127.0.0.1:")

        def reached() -> bool:
            try:
                return bool(urllib.request.urlopen(f"{url}/page", timeout=5).read() == b"hello")
            except OSError:
                return False

        assert eventually(reached, 30)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130


@pytest.mark.parametrize("spec", ["0", "x", "65536", "1:2:3", "70000:80", ":80"])
def test_what_is_no_port_is_said(spec: str) -> None:
    ran = run_gamebox("run", "--forward", spec, "--", "true")
    assert ran.returncode == 125
    assert f"--forward {spec!r} does not name a port" in ran.stderr
