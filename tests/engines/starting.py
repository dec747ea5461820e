"""Start an engine in its root file system: own namespaces of mounts, network and control groups, its data in an own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import docker
import docker.errors

from tests.integration.observing import eventually

from . import reaching
from .roots import root_of
from .table import Engine

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
exec unshare --mount --net --ipc --cgroup "$@"
"""
# Run by the shell that is the first in the engine's namespaces. The folder of the engine has the same path inside, so that what
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
exec 3<&0
unset DOCKER_HOST XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_CACHE_HOME XDG_STATE_HOME
exec sh "$base/command"
"""


@dataclass
class Started:
    """An engine that runs. ``variables`` name it to a client."""

    engine: Engine
    base: Path
    process: subprocess.Popen[bytes]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> str:
        """The address of its socket, by which every engine can be reached, too."""
        return f"unix://{self.base}/engine.sock"

    @property
    def log(self) -> str:
        """What the engine has said."""
        return (self.base / "log").read_text(errors="replace")

    def answers(self) -> bool:
        """Return whether the engine answers."""
        client = docker.DockerClient(base_url=self.socket, version="1.41", timeout=5)
        try:
            return bool(client.ping())
        except (OSError, docker.errors.DockerException):
            return False
        finally:
            client.close()


@contextmanager
def started(engine: Engine) -> Iterator[Started]:
    """Start the engine; end it with everything that it started, and remove its files. Raises RuntimeError if it does not start."""
    lower = root_of(engine.suite)
    base = Path(tempfile.mkdtemp(prefix="gamebox-engine-", dir="/var/tmp"))  # not in memory
    with ExitStack() as stack:
        stack.callback(_remove, base)
        for name in ("upper", "work", "root", "data", "exec"):
            (base / name).mkdir()
        base.chmod(0o755)
        for path, content in engine.files(base).items():
            (base / path).write_text(content)
        listener = None
        if engine.reached == "tls":
            reaching.write_certificates(base)
            listener = stack.enter_context(reaching.listen())
        argv = ["sh", "-c", _APART, "sh", base.name, "sh", "-c", _ENTER, "sh", str(base), str(lower), engine.cgroup]
        with (base / "log").open("wb") as log:
            stdin = subprocess.DEVNULL if listener is None else listener.fileno()
            process = subprocess.Popen(argv, stdin=stdin, stdout=log, stderr=log, start_new_session=True)
        own = Started(engine, base, process)
        stack.callback(_end, own)
        if not eventually(lambda: own.answers() or process.poll() is not None, _START_SECONDS) or not own.answers():
            raise RuntimeError(f"{engine.name} does not start: {own.log[-3000:]}")
        own.variables = {"DOCKER_HOST": own.socket}
        if listener is not None:
            own.variables = reaching.by_tls(base, listener)
        if engine.reached == "ssh":
            own.variables = stack.enter_context(reaching.by_ssh(base, process.pid))
        yield own


def _end(own: Started) -> None:
    """End the engine as its service manager would, then kill all that is left in its control groups."""
    own.process.terminate()
    try:
        own.process.wait(20)
    except subprocess.TimeoutExpired:
        own.process.kill()
        own.process.wait()
    eventually(lambda: not _kill(own.base.name), 10)


def _kill(cgroup: str) -> bool:
    """Kill every process in the control groups of that name; return whether there was one."""
    found = set()
    for listed in Path("/sys/fs/cgroup/pids", cgroup).rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in listed.read_text().split()}
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _remove(base: Path) -> None:
    """Remove the files of an engine that has ended, and its control groups, from the innermost."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{base.name}"):
        for folder, _, _ in os.walk(top, topdown=False):
            eventually(lambda folder=folder: _remove_cgroup(folder), 2)  # type: ignore[misc]
    shutil.rmtree(base, ignore_errors=True)


def _remove_cgroup(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:  # its last process has not quite ended
        return False
    return True
