"""An engine of the test's own is restarted under a kept sandbox in use: with live-restore callers see a notice and some time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker import orphans, reaching, runtime
from sandbox.docker.engine import connect
from sandbox.errors import ErrorCode

from .observing import eventually
from .test_bare_images import BUSYBOX, archive_of
from .test_engine_faults import _end, _sockets_of_lost_engines, _sockets_that_outlive_their_test, in_a_run

__all__ = ["_sockets_of_lost_engines", "_sockets_that_outlive_their_test"]

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

SMALL = Limits(memory_bytes=256 << 20)
IMAGE = "gamebox-test-restarted"


class RestartedEngine:
    """A daemon that leaves its containers running when it goes."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.address = f"unix://{base}/engine.sock"
        self.daemon: subprocess.Popen[bytes]
        self._started()

    def _started(self) -> None:
        base = self.base
        argv = [
            # In a network namespace of its own: a daemon without a bridge removes docker0, which belongs to the machine's engine.
            "unshare", "--net", "dockerd", "--data-root", f"{base}/data", "--exec-root", f"{base}/exec", "--host", self.address,
            "--pidfile", f"{base}/pid", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--live-restore",
        ]  # fmt: skip
        for _ in range(3):  # too soon after a SIGKILL it may fail once: its containerd takes a while to go
            (base / "engine.sock").unlink(missing_ok=True)
            (base / "pid").unlink(missing_ok=True)
            daemon = subprocess.Popen(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            self.daemon = daemon
            if self._answers(daemon):
                return
            daemon.kill()
            daemon.wait()
        pytest.fail("the engine does not start")

    def _answers(self, daemon: subprocess.Popen[bytes]) -> bool:
        def pong() -> bool:
            with socket.socket(socket.AF_UNIX) as visitor:  # it listens before it serves
                visitor.settimeout(2)
                try:
                    visitor.connect(self.address.removeprefix("unix://"))
                    visitor.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                    return b" 200 " in visitor.recv(100)
                except OSError:
                    return False

        return bool(eventually(lambda: pong() or daemon.poll() is not None, 60)) and daemon.poll() is None

    def restart(self, *, kill: bool) -> None:
        self.daemon.kill() if kill else self.daemon.terminate()
        self.daemon.wait(30)
        self._started()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RestartedEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None or BUSYBOX is None:
        pytest.skip("needs root, dockerd and a static busybox")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    main = connect()
    own = RestartedEngine(Path(tempfile.mkdtemp(prefix="gamebox-engine-")))
    try:
        monkeypatch.setenv("DOCKER_HOST", own.address)
        client = connect()
        # Whether the image is still fresh depends on others, which are too large to be copied here.
        monkeypatch.setattr(runtime, "ensure_image", lambda on, name, **_: on.api.inspect_image(name)["Id"])
        list(client.api.load_image(b"".join(main.api.get_image("gamebox/runtime:latest"))))
        client.api.import_image_from_data(
            archive_of(["sh", "sleep", "echo", "cat", "seq", "wc"]), repository=IMAGE, tag="latest"
        )
        yield own
    finally:
        _end(own.daemon, own.base)


@pytest.mark.timeout(240)
def test_a_kept_sandbox_lives_through_restarts_of_its_engine(
    engine: RestartedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A daemon that was killed leaves its containerd, and the next one needs 20 to 40 s until it has got over that.
    monkeypatch.setattr(reaching, "RECONNECT_SECONDS", 90.0)
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True).start()
    try:
        for kill in (False, True):
            began = time.monotonic()
            answer, took = in_a_run(env, partial(engine.restart, kill=kill), "echo x >> ran; sleep 2; seq 20000", 60)
            assert answer.ok, answer
            assert answer.result.output.endswith("20000\n")
            assert "reconnected" in [notice.code for notice in answer.notices]
            print(
                f"kill={kill}: answered {took:.1f} s after the restart began, {time.monotonic() - began:.1f} s in all"
            )
        assert env.run("cat ran").unwrap().output == "x\nx\n"
        engine.restart(kill=False)
        assert env.run("echo idle").unwrap().output == "idle\n"
        env.close()
        engine.restart(kill=False)
        with DockerEnvironment.attach(env.container_id) as later:
            assert later.run("wc -l < ran").unwrap().output.strip() == "2"
    finally:
        env.remove()


@pytest.mark.timeout(240)
def test_the_guest_keeps_its_deadline_while_the_engine_is_away(engine: RestartedEngine) -> None:
    env = DockerEnvironment(IMAGE, limits=SMALL, keep=True, keep_seconds=3.0).start()
    guest = connect().api.inspect_container(env.container_id)["State"]["Pid"]
    engine.daemon.kill()
    engine.daemon.wait()
    assert Path(f"/proc/{guest}").exists(), "the sandbox outlives its engine"
    assert eventually(lambda: not Path(f"/proc/{guest}").exists(), 12.0)
    answer = env.run("true")
    assert answer.code is ErrorCode.sandbox_unavailable  # type: ignore[union-attr]
    env.close()
    engine.restart(kill=True)
    orphans._swept.clear()
    orphans.sweep(connect())
    assert connect().api.containers(all=True) == [], "its remains are removed by the next that comes"
