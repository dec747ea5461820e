"""The way to the engine breaks, or the engine itself dies: an error with the right reason, in time, and nothing left behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker import engine, runtime
from sandbox.docker.engine import connect
from sandbox.errors import ErrorCode

from .engine_proxy import ENGINE, EngineProxy
from .made_images import busybox_image, static_busybox
from .observing import eventually, within

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

SMALL = Limits(memory_bytes=256 << 20)
BUSYBOX = static_busybox()


@pytest.fixture(autouse=True)
def _sockets_of_lost_engines() -> Iterator[None]:
    """Docker-py leaves the sockets of connections that were cut to the garbage collector, which warns of each."""
    before = set(engine._clients)
    yield
    for lost in set(engine._clients) - before:
        engine._clients.pop(lost).close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _sockets_that_outlive_their_test() -> Iterator[None]:
    """Close the sockets to engines that are gone, which clients still hold that the session keeps alive to its end."""
    yield
    for held in gc.get_objects():
        if isinstance(held, socket.socket) and held.family == socket.AF_UNIX and held.fileno() >= 0:
            try:
                peer = str(held.getpeername())
            except OSError:  # nobody there any more
                peer = "gamebox-"
            if "gamebox-" in peer or not peer:
                held.close()


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    if not Path(ENGINE).is_socket():
        pytest.skip("the engine is not at its usual socket")
    folder = Path(tempfile.mkdtemp(prefix="gamebox-proxy-"))  # tmp_path is too long for a socket
    with EngineProxy(folder / "engine.sock") as made:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{made.path}")
        yield made
    shutil.rmtree(folder)


def gone(container: str) -> bool:
    client = docker.DockerClient(base_url=f"unix://{ENGINE}")
    try:
        client.api.inspect_container(container)
    except docker.errors.NotFound:
        return True
    finally:
        client.close()
    return False


def in_a_run(env: DockerEnvironment, fault: Callable[[], None], command: str, seconds: float) -> tuple[Any, float]:
    """The answer to a run in the middle of which ``fault`` happened, and how long after that it came."""
    answers: list[tuple[Any, float]] = []

    def run() -> None:
        answer = env.run(command, timeout_seconds=seconds, keep_output_bytes=1 << 20)
        answers.append((answer, time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    at = time.monotonic()
    fault()
    thread.join(seconds + 10)
    assert answers, "the caller waits for ever"
    return answers[0][0], answers[0][1] - at


@pytest.mark.parametrize("count", [0, 3, 20, 5000])
def test_the_stream_is_cut_in_mid_frame(proxy: EngineProxy, count: int) -> None:
    with DockerEnvironment(limits=SMALL) as env:
        container = env.container_id
        fault = (lambda: proxy.cut("attach")) if not count else (lambda: proxy.cut_after("attach", count))
        answer, took = in_a_run(env, fault, "sleep 0.5; seq 200000", 30)
        assert not answer.ok
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "connection to the sandbox was cut" in answer.error, answer.error
        assert took < 0.5 + 2.0
        again, _ = within(0.25, lambda: env.read("x"))
        assert again.code is ErrorCode.sandbox_unavailable
    assert eventually(lambda: gone(container), 3.0)


def test_the_stream_stalls(proxy: EngineProxy) -> None:
    with DockerEnvironment(limits=SMALL) as env:
        container = env.container_id
        answer, took = in_a_run(env, lambda: proxy.stall("attach"), "seq 200000; sleep 100", 1.0)
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "did not answer" in answer.error
        assert took < 1.0 + 2.0 + 0.5
        assert eventually(lambda: gone(container), 3.0), "the deadline was not made good"


def test_all_connections_are_cut(proxy: EngineProxy) -> None:
    env = DockerEnvironment(limits=SMALL).start()
    container = env.container_id
    answer, took = in_a_run(env, proxy.close, "sleep 100", 30)
    assert answer.code is ErrorCode.sandbox_unavailable
    assert "Engine is gone" in answer.error, answer.error
    assert took < 2.0
    within(2.0, env.close)
    assert eventually(lambda: gone(container), 3.0)


def test_a_lost_event_stream_does_not_make_an_engine_gone(proxy: EngineProxy) -> None:
    with DockerEnvironment(limits=SMALL) as env:
        proxy.cut("events")
        time.sleep(0.2)
        answer, took = in_a_run(env, lambda: connect().api.kill(env.container_id), "sleep 100", 30)
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "Engine is gone" not in answer.error
        assert took < 2.0
    with DockerEnvironment(limits=SMALL) as another:  # a new stream is opened for it
        connect().api.kill(another.container_id)
        assert "killed from outside" in another.run("true").error  # type: ignore[union-attr]


# --- an engine of the test's own ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A second daemon with folders of its own, which holds a busybox image and the guest's runtime."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or BUSYBOX is None:
        pytest.skip("needs root, dockerd and a static busybox")
    main = connect()
    base = Path(tempfile.mkdtemp(prefix="gamebox-engine-"))
    address = f"unix://{base}/engine.sock"
    daemon = subprocess.Popen(
        # In a network namespace of its own: a daemon without a bridge removes docker0, which belongs to the machine's engine.
        ["unshare", "--net", "dockerd", "--data-root", f"{base}/data", "--exec-root", f"{base}/exec", "--host", address,
         "--pidfile", f"{base}/pid", "--bridge", "none", "--iptables=false", "--ip6tables=false"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: (base / "engine.sock").is_socket(), 60)
        monkeypatch.setenv("DOCKER_HOST", address)
        client = connect()
        # Whether the image is still fresh depends on others, which are too large to be copied here.
        monkeypatch.setattr(runtime, "ensure_image", lambda on, name, **_: on.api.inspect_image(name)["Id"])
        list(client.api.load_image(b"".join(main.api.get_image("gamebox/runtime:latest"))))
        assert BUSYBOX is not None
        busybox_image(client, BUSYBOX, ["sh", "sleep", "echo"], name="gamebox-test-own")
        yield daemon
    finally:
        _end(daemon, base)


def _end(daemon: subprocess.Popen[bytes], base: Path) -> None:
    """End the daemon, its containerd and its containers, each by its id, and what they mounted."""
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    for _ in range(3):
        for name in os.listdir("/proc"):
            if name.isdigit() and str(base).encode() in _command_line(name):
                try:
                    os.kill(int(name), signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.1)
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for path in [line.split()[1] for line in mounts if f" {base}/" in line]:
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
    shutil.rmtree(base, ignore_errors=True)


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.timeout(180)
def test_an_engine_killed_in_the_middle_of_a_run(own_engine: subprocess.Popen[bytes]) -> None:
    env = DockerEnvironment("gamebox-test-own", limits=SMALL).start()
    guest = connect().api.inspect_container(env.container_id)["State"]["Pid"]
    try:
        assert env.run("echo alive").unwrap().output == "alive\n"
        answer, took = in_a_run(env, own_engine.kill, "sleep 100", 30)
        assert answer.code is ErrorCode.sandbox_unavailable
        assert "Engine is gone" in answer.error, answer.error
        assert took < 2.0
        within(5.0, env.close)
        fresh = DockerEnvironment("gamebox-test-own", limits=SMALL)
        with pytest.raises(Exception, match="engine") as refused:
            fresh.start()
        assert refused.value.code is ErrorCode.engine_unavailable  # type: ignore[attr-defined]
    finally:
        if str(guest) in os.listdir("/proc"):
            os.kill(guest, signal.SIGKILL)
