"""What a hostile command of root may do, which shares the guest's uid, and what it still may not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.kept import inventory
from sandbox.errors import SandboxUnavailableError
from tests.integration.observing import eventually, processes

from .probing import probe
from .test_isolation import REFUSED

pytestmark = pytest.mark.engine

# Of moby's default profile: chown, dac_override, fsetid, fowner, mknod, net_raw, setgid, setuid, setfcap, setpcap,
# net_bind_service, sys_chroot, kill, audit_write.
DEFAULT_CAPABILITIES = 0xA80425FB


class AsRoot:
    """``env`` with every command run as root on request; everything else is the environment's own."""

    def __init__(self, env: DockerEnvironment) -> None:
        self._env = env

    def run(self, *args: Any, **options: Any) -> Any:
        return self._env.run(*args, user="root", **options)

    def kill(self, ident: str) -> Any:
        return self._env.kill(ident, user="root")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


PROFILES = ("root", "root-on-request")


def as_root(env: DockerEnvironment) -> DockerEnvironment:
    return env if env.profile.name == "root" else cast("DockerEnvironment", AsRoot(env))


@pytest.fixture(params=PROFILES)
def root(request: pytest.FixtureRequest) -> Iterator[DockerEnvironment]:
    """Commands of root: all of profile root, and those that root-on-request is asked for."""
    with DockerEnvironment(profile=request.param, limits=Limits(memory_bytes=256 << 20, pids=128)) as env:
        yield as_root(env)


def test_no_more_than_the_default_capabilities(root: DockerEnvironment) -> None:
    """Threat: root in the container has a capability that reaches the host's kernel."""
    status = dict(
        line.split(":\t", 1) for line in root.run("cat /proc/self/status").unwrap().output.splitlines() if ":\t" in line
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) & ~DEFAULT_CAPABILITIES == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


READING = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "pagemap"):
    try: print("READ", name, open(f"/proc/1/{name}", "rb").read(1))
    except OSError: pass
for fd in range(12):
    for mode in (os.O_RDONLY, os.O_WRONLY):
        try: os.open(f"/proc/1/fd/{fd}", mode); print("OPENED", fd)
        except OSError: pass
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
calls = {"attach": (101, 16, 1, 0, 0), "seize": (101, 0x4206, 1, 0, 0), "vm_readv": (310, 1, vector, 1, vector, 1, 0),
         "vm_writev": (311, 1, vector, 1, vector, 1, 0), "kcmp": (312, 1, os.getpid(), 0, 3, 0)}
for name, call in calls.items():
    if libc.syscall(*call) >= 0: print("ALLOWED", name)
pidfd = libc.syscall(434, 1, 0)
for fd in range(12):
    if libc.syscall(438, pidfd, fd, 0) >= 0: print("TAKEN", fd)
print("done")
"""


def test_memory_and_pipe_of_the_guest(root: DockerEnvironment) -> None:
    """Threat: a command with the guest's uid reads the pipe's secrets, or speaks in the guest's name."""
    assert probe(root, READING) == "done\n"


def test_signals_do_not_end_the_guest(root: DockerEnvironment) -> None:
    """Threat: root ends or stops the guest, and the sandbox with it."""
    root.run("for s in KILL STOP TERM INT HUP SEGV USR1; do kill -$s 1; done; true").unwrap()
    assert root.run("echo unharmed").unwrap().output == "unharmed\n"


def test_nothing_outlives_a_runner_that_was_killed(root: DockerEnvironment) -> None:
    """Threat: a command kills its runner, so that what it started is not below anything that is watched."""
    root.run(
        "(setsid sleep 1111 &); (setsid sh -c 'trap \"\" TERM; sleep 1111' &); kill -9 $PPID; sleep 1111",
        timeout_seconds=5,
    )
    assert eventually(lambda: not [p for p in processes(root) if p.alive and "1111" in p.args])
    other = root.run("exec sleep 2222", background=True).unwrap().id
    root.run("kill -9 $PPID", session=None)
    assert root.run("sleep 0.7; echo next").unwrap().output == "next\n"
    assert root.kill(other).unwrap().killed == 1, "another command was taken for a stray"


def test_kill_everything_as_root(root: DockerEnvironment) -> None:
    """Threat: ``kill -9 -1`` as root takes all that serves the sandbox but PID 1."""
    for _ in range(2):
        root.run("kill -9 -1; sleep 1")
        # a command that follows at once may have been given to a process that was hit as well, and says so
        assert eventually(lambda: root.run("echo next").unwrap().output == "next\n")


def test_system_calls_of_root(root: DockerEnvironment) -> None:
    """Threat: a kernel feature that the default capabilities open up: mounts, namespaces, devices, modules."""
    if root.run("uname -m").unwrap().output.strip() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    # setuid, setgid and chroot stay in the container; raw sockets see its own network alone
    harmless = {"chroot", "setuid", "setgid", "raw icmp", "raw icmp6"}
    allowed = {line.removeprefix("ALLOWED ") for line in probe(root, REFUSED).splitlines()}
    assert allowed <= harmless


def test_host_settings_stay_read_only(root: DockerEnvironment) -> None:
    """Threat: root writes settings of the host's kernel, raw devices, or the guest's own code."""
    files = (
        "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger /sys/kernel/uevent_helper "
        "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max /.gamebox/gamebox_guest/protocol/wire.py"
    )
    assert (
        root.run(f"for f in {files}; do [ -e $f ] && (echo 1 > $f) 2>/dev/null && echo WROTE $f; done; true")
        .unwrap()
        .output
        == ""
    )
    made = root.run(
        "mknod /tmp/disk b 254 0; mknod /disk b 254 0; head -c1 /disk; mknod /mem c 1 1; head -c1 /mem"
    ).unwrap()
    assert made.stdout == ""
    assert (
        root.run("mount -o remount,rw /.gamebox; umount /proc/sys; mount -t proc none /mnt; true").unwrap().stdout == ""
    )


PRELOADED = r"""
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void loaded(void) {
    char line[4096]; size_t n;
    FILE *said = fopen("/proc/self/cmdline", "r"), *log = fopen("/tmp/loaded", "a");
    if (!said || !log) return;
    n = fread(line, 1, sizeof line, said);
    for (size_t i = 0; i < n; i++) if (!line[i]) line[i] = ' ';
    fprintf(log, "%.*s\n", (int)n, line);
    fclose(log); fclose(said);
}
"""
HUNTER = """
import os, signal
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"gamebox_guest.relay" in open(f"/proc/{pid}/cmdline", "rb").read():
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEnvironment]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    limits = Limits(memory_bytes=512 << 20)
    env = DockerEnvironment(profile="root", limits=limits, keep=True, keep_seconds=60.0).start()
    yield env
    (listed,) = [each for each in inventory.sandboxes(connect(), every=True) if each.id == env.container_id]
    inventory.remove(listed, force=True)


def test_nothing_of_ours_loads_what_root_preloads(kept: DockerEnvironment) -> None:
    """Threat: root has a library loaded into every new program, and so into the relay by which an orchestrator comes back."""
    kept.write("/tmp/loaded.c", PRELOADED).unwrap()
    made = "gcc -shared -fPIC -o /usr/lib/loaded.so /tmp/loaded.c && echo /usr/lib/loaded.so > /etc/ld.so.preload"
    assert kept.run(made).unwrap().exit_code == 0
    kept.run("/bin/true probe; echo /tmp > /etc/ld.so.conf; ldconfig").unwrap()
    talker = kept.run("python3 -m http.server 8031", background=True).unwrap().id
    kept.wait_for(port=8031).unwrap()
    kept.browse("http://127.0.0.1:8031/").unwrap()
    kept.wait_for(id=talker, log="GET .* 200").unwrap()
    kept.search("x", ".").unwrap()
    with DockerEnvironment.attach(kept.container_id, take_over=True) as again:  # by the relay
        loaded = again.run("cat /tmp/loaded").unwrap().output
    assert "/bin/true probe" in loaded
    assert "gamebox_guest" not in loaded


def problem_of_attaching(ident: str) -> SandboxUnavailableError | None:
    """Why the sandbox could not be taken over; None where it could, and works."""
    try:
        with DockerEnvironment.attach(ident, take_over=True) as again:
            again.run("true").unwrap()
    except SandboxUnavailableError as error:
        return error
    return None


def test_who_kills_the_relay_keeps_only_its_own_sandbox_from_coming_back(kept: DockerEnvironment) -> None:
    """Threat: root kills what an orchestrator comes back by, which then waits for ever or takes it for something else."""
    hunter = kept.run(argv=["python3", "-c", HUNTER], background=True).unwrap().id
    for _ in range(3):
        began = time.monotonic()
        refused = problem_of_attaching(kept.container_id)
        assert refused is None or (refused.reason in ("pipe_broken", "no_answer") and refused.hint)
        assert time.monotonic() - began < 30
    with contextlib.suppress(SandboxUnavailableError):
        kept.close()
    connect().api.exec_start(
        connect().api.exec_create(kept.container_id, ["pkill", "-9", "-f", "os.listdir"], user="0:0")["Id"]
    )
    with DockerEnvironment.attach(kept.container_id, take_over=True) as again:
        assert again.logs(hunter).unwrap().running is False
