"""A Docker Engine of the test's own: folders, socket, network and, where asked, a disk of its own. It may be hurt in every way."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import docker
import docker.errors
import pytest

from sandbox.docker.container.disks import loop_device as loop
from sandbox.docker.engine import client as engines
from sandbox.docker.engine.client import connect
from sandbox.docker.images import runtime
from sandbox.docker.images.images import ensure_image

from .made_images import busybox_image, static_busybox
from .observing import eventually

TRIED = "GAMEBOX_TRIED_ENGINE"
"""The folder of an engine that tests/engines tries: the tests with an engine of their own run on that."""
MACHINE_ENGINE = "/var/run/docker.sock"
IMAGE = "gamebox-test-own"
ROOT = Path(__file__).parents[2]
# Major and minor number, from linux/miscdevice.h.
LOOP_CONTROL = (10, 237)
# What an orchestrator of the test's begins with, as a process of its own that is started in ROOT.
IN_A_PROCESS = """
from sandbox import DockerEnvironment, Limits
from sandbox.docker.container.disks import loop_device as loop
from sandbox.docker.images import runtime
from tests.integration.own_engine import IMAGE
"""
APPLETS = [
    "sh",
    "sleep",
    "echo",
    "cat",
    "seq",
    "dd",
    "head",
    "tail",
    "wc",
    "kill",
    "ls",
    "rm",
    "date",
    "df",
    "ps",
    "true",
    "truncate",
    "sync",
    "yes",
    "stty",
    "id",
    "env",
    "chown",
    "chmod",
    "grep",
]


class OwnEngine:
    """Use ``running(...)``. ``process`` is its daemon, of which there is another one after a restart."""

    def __init__(self, base: Path, live_restore: bool) -> None:
        self.base = base
        self.address = f"unix://{base}/engine.sock"
        self.process: subprocess.Popen[bytes]
        self._live_restore = live_restore

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        base = self.base
        argv = [
            # In a network namespace of its own: a daemon without a bridge removes docker0, which belongs to the machine's engine.
            "unshare", "--net", "dockerd", "--data-root", f"{base}/data", "--exec-root", f"{base}/exec", "--host", self.address,
            "--pidfile", f"{base}/pid", "--bridge", "none", "--iptables=false", "--ip6tables=false",
            *(["--live-restore"] if self._live_restore else []),
        ]  # fmt: skip
        for _ in range(3):  # too soon after a SIGKILL it may fail once: its containerd takes a while
            with (base / "log").open("ab") as log:
                self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
            if eventually(lambda: self._answers() or self.process.poll() is not None, 60) and self._answers():
                return
            self.process.kill()
            self.process.wait()
        pytest.fail(f"the engine does not start: {(base / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as visitor:  # docker-py would leak one for each attempt
            if visitor.connect_ex(self.address.removeprefix("unix://")):
                return False
        client = docker.DockerClient(base_url=self.address, version="1.41", timeout=5)
        try:
            return bool(client.ping())
        except (OSError, docker.errors.DockerException):  # those of requests are OSErrors
            return False
        finally:
            client.close()

    def terminate(self) -> None:
        """SIGTERM, and wait for the end: what ``systemctl stop docker`` does."""
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL to the daemon alone; its containerd and the containers go on."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP: sockets take connections, and nothing ever answers."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave not one byte on the engine's disk; for an engine with ``disk_bytes``."""
        with open(self.base / "data/filler", "ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free_disk(self) -> None:
        """Undo ``fill_disk``."""
        (self.base / "data/filler").unlink()

    # --- what is there ------------------------------------------------------------------
    def containers(self) -> list[str]:
        """Names of all containers."""
        return [name for one in connect().api.containers(all=True) for name in one["Names"]]

    def volumes(self) -> list[str]:
        """Names of all volumes but the guest's runtime."""
        listed = connect().api.volumes().get("Volumes") or []
        return [v["Name"] for v in listed if not v["Name"].startswith("gamebox-runtime-")]

    def loop_devices(self) -> list[str]:
        """Loop devices whose blocks lie in the engine's folders."""
        files = Path("/sys/block").glob("loop*/loop/backing_file")
        return [str(path) for path in files if str(self.base) in _text(path)]

    def shims(self) -> list[int]:
        """Process ids of what holds the containers: none where there is no container."""
        return [pid for pid in self._processes() if b"containerd-shim" in _command_line(pid)]

    def nothing_is_left(self, seconds: float = 20.0) -> bool:
        """Whether within that time no container, volume, loop device or process of a sandbox is left."""
        left: dict[str, Any] = {}

        def nothing() -> bool:
            left.update(
                containers=self.containers(), volumes=self.volumes(), loops=self.loop_devices(), shims=self.shims()
            )
            return not any(left.values())

        assert eventually(nothing, seconds), left
        return True

    # --- end ------------------------------------------------------------------
    def _processes(self) -> list[int]:
        return [
            int(name)
            for name in os.listdir("/proc")
            if name.isdigit() and str(self.base).encode() in _command_line(int(name))
        ]

    def end(self) -> None:
        """End the daemon, its containerd and its containers, each by its id, and unmount what they mounted."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        for _ in range(3):
            for pid in self._processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            below = [line.split()[1] for line in mounts if f" {self.base}/" in line]
        for path in sorted(below, reverse=True):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
        shutil.rmtree(self.base, ignore_errors=True)


def lacking(what: str) -> NoReturn:
    """Skip the test for want of it; with GAMEBOX_REQUIRE_ENGINE=1, as in CI, fail it: there nothing is left out."""
    if os.environ.get("GAMEBOX_REQUIRE_ENGINE") == "1":
        pytest.fail(f"GAMEBOX_REQUIRE_ENGINE=1, but: {what}", pytrace=False)
    pytest.skip(what)


def need_loop_devices() -> None:
    """Skip the test where no loop devices can be made.

    In CI it fails for it, unless this very kernel or container has none to give: /dev/loop-control cannot be opened, not even
    a node of it that is made here.
    """
    why = loop.problem()
    if not why:
        return
    if why.startswith(loop.CONTROL) and not _loop_control_can_be_made():
        pytest.skip(f"{why}, nor can a node of it that is made here (mknod c 10 237): this kernel has no loop devices for us")
    lacking(why)


def _loop_control_can_be_made() -> bool:
    with tempfile.TemporaryDirectory(prefix="gamebox-") as folder:
        node = Path(folder, "loop-control")
        try:
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(*LOOP_CONTROL))
            os.close(os.open(node, os.O_RDWR))
        except OSError:
            return False
    return True


@contextmanager
def running(*, live_restore: bool = False, disk_bytes: int | None = None) -> Iterator[OwnEngine]:
    """An engine with a busybox image and the guest's runtime; DOCKER_HOST names it meanwhile.

    ``disk_bytes`` is the size of a disk of its own for its data.
    """
    with started(live_restore=live_restore, disk_bytes=disk_bytes) as own, in_use(own):
        yield own


@contextmanager
def started(*, live_restore: bool = False, disk_bytes: int | None = None) -> Iterator[OwnEngine]:
    """The same, of which nobody knows: for ``in_use``."""
    busybox = static_busybox()
    if os.geteuid() != 0 or shutil.which("dockerd") is None or busybox is None:
        lacking("needs root, dockerd and a static busybox")
    own = OwnEngine(Path(tempfile.mkdtemp(prefix="gamebox-engine-")), live_restore)
    try:
        if disk_bytes is not None:
            (own.base / "data").mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "none", str(own.base / "data")]
            subprocess.run(mount, check=True)
        own.start()
        main = docker.DockerClient(base_url=f"unix://{MACHINE_ENGINE}")
        client = docker.DockerClient(base_url=own.address)
        try:
            name = ensure_image(main, runtime.RUNTIME_IMAGE, report=print)
            list(client.api.load_image(b"".join(main.api.get_image(name))))
            repository, _, tag = runtime.runtime_image(client).partition(":")
            client.api.tag(name, repository, tag)  # there is no gamebox/base here, by which it could have another tag
            busybox_image(client, busybox, APPLETS, name=IMAGE)
        finally:
            main.close()
            client.close()
        yield own
    finally:
        own.end()
        collect_sockets()


@contextmanager
def tried(folder: Path) -> Iterator[OwnEngine]:
    """The engine that DOCKER_HOST names, in place of another one: tests/engines has started it in ``folder``, with our images."""
    own = OwnEngine(folder, live_restore=False)
    own.address = os.environ["DOCKER_HOST"]
    busybox = static_busybox()
    if busybox is None:
        lacking("needs a static busybox")
    client = docker.DockerClient(base_url=f"unix://{folder}/engine.sock")
    try:
        busybox_image(client, busybox, APPLETS, name=IMAGE)
    finally:
        client.close()
    yield own


@contextmanager
def in_use(own: OwnEngine) -> Iterator[None]:
    """DOCKER_HOST names the engine meanwhile; clients that were made of it are closed in the end."""
    if os.environ.get("DOCKER_HOST") == own.address:  # the one that is tried, also by tests before and after these
        yield
        return
    known = set(engines._clients)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DOCKER_HOST", own.address)
        try:
            connect()
            collect_sockets()
            yield
        finally:
            for lost in set(engines._clients) - known:
                engines._clients.pop(lost).close()
            collect_sockets()
            _close_lost_sockets()


def collect_sockets() -> None:
    """Docker-py leaves the sockets of streams and of connections that were cut to the garbage collector, which warns of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


_ENGINE_SOCKET = (socket.AF_UNIX, socket.SOCK_STREAM)


def _close_lost_sockets() -> None:
    """Close the sockets to such engines, and to their proxies, which clients still hold that the session keeps alive to its end."""
    for held in gc.get_objects():
        if isinstance(held, socket.socket) and (held.family, held.type) == _ENGINE_SOCKET and held.fileno() >= 0:
            try:
                peer = str(held.getpeername())
            except OSError:  # nobody there any more
                peer = "gamebox-"
            if "gamebox-" in peer or not peer:
                held.close()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # gone meanwhile
        return ""
