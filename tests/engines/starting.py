"""Start an engine in its root file system: namespaces of its own for mounts, processes and network; its data in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

from tests.integration.observing import eventually

from .table import Engine
from .roots import root_of

_START_SECONDS = 60.0
# The engine lives in control groups of its own, which are the roots of all that it sees.
_APART = """
set -e
for top in /sys/fs/cgroup/*/; do
    mine=$top$1
    mkdir "$mine"
    for name in cpus mems; do
        if [ -e "$mine/cpuset.$name" ]; then cat "$top/cpuset.$name" >"$mine/cpuset.$name"; fi
    done
    echo $$ >"$mine/cgroup.procs"
done
shift
exec unshare --mount --pid --net --ipc --cgroup --fork --kill-child "$@"
"""
# Run by a shell that becomes process 1 of the engine's namespaces. The folder of the engine has the same path inside, so that what
# it says of its files holds outside, too.
_ENTER = """
set -e
base=$1 lower=$2 cgroup=$3
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$base/upper,workdir=$base/work" "$base/root"
cd "$base/root"
mkdir -p ".$base" old
mount --rbind "$base" ".$base"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ "$cgroup" = unified ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    for top in /sys/fs/cgroup/*/; do
        name=$(basename "$top")
        mkdir "sys/fs/cgroup/$name"
        case $name in
        unified) if [ "$cgroup" = hybrid ]; then mount -t cgroup2 cgroup2 sys/fs/cgroup/unified; fi ;;
        systemd) mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd ;;
        *) mount -t cgroup -o "$name" cgroup "sys/fs/cgroup/$name" ;;
        esac
    done
fi
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p run/lock run/containers var/tmp
ip link set lo up
pivot_root . old
cd /
umount -l old
mkdir -p /root && export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset DOCKER_HOST XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_CACHE_HOME XDG_STATE_HOME
sh "$base/command" &
# As process 1 it also collects what others leave behind.
trap 'kill $!; wait $!' TERM
wait $!
"""


@dataclass
class Started:
    """An engine that runs. ``address`` is what DOCKER_HOST names; ``process`` has its process 1 as the only child."""

    engine: Engine
    base: Path
    address: str
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """What the engine has said."""
        return (self.base / "log").read_text(errors="replace")

    def answers(self) -> bool:
        """Return whether the engine answers."""
        client = docker.DockerClient(base_url=self.address, version="1.41", timeout=5)
        try:
            return bool(client.ping())
        except (OSError, docker.errors.DockerException):
            return False
        finally:
            client.close()


@contextmanager
def started(engine: Engine) -> Iterator[Started]:
    """Start the engine; end it with everything that it started, and remove its files."""
    lower = root_of(engine.suite)
    base = Path(tempfile.mkdtemp(prefix="gamebox-engine-", dir="/var/tmp"))  # noqa: S108  not in memory
    try:
        for name in ("upper", "work", "root", "data", "exec"):
            (base / name).mkdir()
        base.chmod(0o755)
        for path, content in engine.files(base).items():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_text(content)
        argv = ["sh", "-c", _APART, "sh", base.name, "sh", "-c", _ENTER, "sh"]
        with (base / "log").open("wb") as log:
            process = subprocess.Popen(
                [*argv, str(base), str(lower), engine.cgroup], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        own = Started(engine, base, f"unix://{base}/engine.sock", process)
        try:
            if not eventually(lambda: own.answers() or process.poll() is not None, _START_SECONDS) or not own.answers():
                raise RuntimeError(f"{engine.name} does not start: {own.log[-3000:]}")
            yield own
        finally:
            _end(own)
    finally:
        _remove_cgroups(base.name)
        shutil.rmtree(base, ignore_errors=True)


def _end(own: Started) -> None:
    """End the engine as its service manager would, then kill all that is left in its namespace of process ids."""
    children = Path(f"/proc/{own.process.pid}/task/{own.process.pid}/children")
    inside = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    for pid in inside:
        os.kill(pid, signal.SIGTERM)
    try:
        own.process.wait(20)
    except subprocess.TimeoutExpired:
        own.process.kill()  # and with it process 1, and with that all others
        own.process.wait()
    eventually(lambda: not any(str(own.base) in line for line in Path("/proc/self/mounts").read_text().splitlines()), 5)


def _remove_cgroups(parent: str) -> None:
    """Remove the control groups of an engine, from the innermost."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{parent}"):
        for folder, _, _ in os.walk(top, topdown=False):
            for _ in range(20):
                try:
                    os.rmdir(folder)
                    break
                except OSError:
                    time.sleep(0.05)


