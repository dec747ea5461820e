"""What a hostile command may not do: to the kernel, to the guest that serves the host, and to other sandboxes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from sandbox import DockerEnvironment
from tests.integration.observing import eventually

from .probing import probe

pytestmark = pytest.mark.engine


@pytest.fixture(params=["default", "root-on-request"])
def env(request: pytest.FixtureRequest, living: Callable[..., DockerEnvironment]) -> DockerEnvironment:
    """A sandbox whose commands are uid 1000; they have no more rights where the host's program may run others as root."""
    return living(request.param)


@pytest.fixture
def default(living: Callable[..., DockerEnvironment]) -> DockerEnvironment:
    return living()


def test_identity(env: DockerEnvironment) -> None:
    """Threat: a command starts with rights that it could use against the kernel or the guest."""
    status = env.run("cat /proc/self/status; id -u; id -G").unwrap().output
    for line in ("CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
                 "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t \n"):  # fmt: skip
        assert line in status
    assert status.endswith("1000\n1000\n")
    bounding = re.search(r"CapBnd:\s*([0-9a-f]+)", status)
    assert bounding is not None
    assert int(bounding.group(1), 16) & ~0b11100000 == 0  # at most setuid, setgid and kill, which no_new_privs closes


def test_descriptors(env: DockerEnvironment) -> None:
    """Threat: a command inherits the pipe to the host, a socket of a runner, or another command's output."""
    other = env.run("exec sleep 1000", background=True).unwrap().id
    found = probe(
        env,
        'import os\nfor n in range(4096):\n  try: print(n, os.readlink(f"/proc/self/fd/{n}"))\n  except OSError: pass',
    )
    by_number = dict(line.split(" ", 1) for line in found.splitlines())
    assert set(by_number) <= {"0", "1", "2", "199"}
    assert not [t for n, t in by_number.items() if t.startswith("socket")]
    assert "gamebox" not in found
    env.kill(other).unwrap()


GUARDED = """
import ctypes, os, signal, resource
libc = ctypes.CDLL(None, use_errno=True)
for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
    try:
        if os.stat(f"/proc/{pid}").st_uid == os.getuid() or open(f"/proc/{pid}/stat").read().split()[2] == "Z": continue
    except OSError:
        continue
    def attempt(name, call):
        try:
            if call() is not False: print("ALLOWED", pid, name)
        except OSError as error:
            pass
    def raw(number, *arguments):
        return libc.syscall(number, *arguments) >= 0
    print("guarded", pid)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT, 0):
        attempt(f"kill {number}", lambda: os.kill(pid, number))
    for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "pagemap", "io"):
        attempt(f"open {name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1) and None)
    for name in ("fd", "map_files", "cwd", "exe", "root", "ns/net"):
        path = f"/proc/{pid}/{name}"
        attempt(f"look into {name}", lambda: os.listdir(path) if name in ("fd", "map_files") else os.readlink(path))
    for fd in range(12):
        attempt(f"open fd {fd}", lambda: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR))
    for name in ("oom_score_adj", "coredump_filter", "comm", "clear_refs", "timerslack_ns"):
        attempt(f"write {name}", lambda: open(f"/proc/{pid}/{name}", "w").write("0"))
    attempt("ptrace attach", lambda: raw(101, 16, pid, 0, 0))
    attempt("ptrace seize", lambda: raw(101, 0x4206, pid, 0, 0))
    attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)) and None)
    attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
    attempt("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    attempt("vm_readv", lambda: raw(310, pid, None, 0, None, 0, 0) and False)
    attempt("io priority", lambda: raw(251, 1, pid, 0x6007))
    def pidfd():
        fd = libc.syscall(434, pid, 0)
        return fd >= 0 and (libc.syscall(438, fd, 3, 0) >= 0 or libc.syscall(424, fd, 9, None, 0) >= 0)
    attempt("pidfd", pidfd)
"""


def test_the_guest_and_its_helpers_are_out_of_reach(env: DockerEnvironment) -> None:
    """Threat: a command kills, stops, slows, reads or drives the guest (pid 1), the launcher or a runner, and so speaks for it."""
    said = probe(env, GUARDED).splitlines()
    assert "guarded 1" in said
    assert len([line for line in said if line.startswith("guarded")]) >= 3  # guest, launcher, a runner
    assert [line for line in said if line.startswith("ALLOWED")] == []
    assert env.run("echo unharmed").unwrap().output == "unharmed\n"


def test_kill_everything_a_command_may_kill(env: DockerEnvironment) -> None:
    """Threat: ``kill -9 -1`` takes what serves the sandbox along with the command."""
    for _ in range(3):
        answer = env.run("kill -9 -1; sleep 1; echo survived").unwrap()
        assert (answer.signal, answer.exit_code) in {("SIGKILL", None), (None, 137)} or "survived" in answer.output
        assert env.run("echo next").unwrap().output == "next\n"
    assert env.read("/etc/hostname").ok is False
    assert env.write("here", "x").ok


REFUSED = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
calls = {
    "io_uring_setup": (425, 8, buffer), "io_uring_enter": (426, 0, 0, 0, 0, 0, 0), "io_uring_register": (427, 0, 0, 0, 0),
    "keyctl": (250, 0, 0, 0, 0, 0), "add_key": (248, b"user", b"a", b"b", 1, -2), "request_key": (249, b"user", b"a", 0, -2),
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "umount": (166, b"/tmp", 2), "pivot_root": (155, b"/", b"/tmp"),
    "chroot": (161, b"/tmp"), "unshare user": (272, 0x10000000), "unshare mount": (272, 0x20000), "unshare net": (272, 0x40000000),
    "bpf": (321, 0, buffer, 64), "perf_event_open": (298, buffer, 0, -1, -1, 0), "userfaultfd": (323, 0),
    "open_by_handle_at": (304, -100, buffer, 0), "memfd_secret": (447, 0), "init_module": (175, buffer, 8, b""),
    "finit_module": (313, 0, b"", 0), "kexec_load": (246, 0, 0, 0, 0), "modify_ldt": (154, 0x11, buffer, 16),
    "vmsplice": (278, 1, buffer, 0, 0), "process_madvise": (440, 0, 0, 0, 0, 0), "syslog": (103, 3, buffer, 10),
    "sethostname": (170, b"x", 1), "settimeofday": (164, buffer, 0), "fsopen": (430, b"tmpfs", 0),
    "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, -100, b"/", -100, b"/tmp", 0), "mount_setattr": (442, -100, b"/", 0, buffer, 32),
    "mknod char": (133, b"/tmp/device", 0o20666, 0x105), "mknod block": (133, b"/tmp/block", 0o60666, 0x800),
    "setuid": (105, 0), "setgid": (106, 0), "reboot": (169, 0xfee1dead, 672274793, 0, 0), "swapon": (167, b"/tmp", 0),
    "acct": (163, b"/tmp/a"), "quotactl": (179, 0, 0, 0, 0), "iopl": (172, 3), "x32 getpid": (0x40000000 + 39,),
}
for name, (number, *arguments) in calls.items():
    if libc.syscall(ctypes.c_long(number), *arguments) != -1: print("ALLOWED", name)
families = {"vsock": (40, 1), "packet": (17, 3), "alg": (38, 5), "xdp": (44, 3), "bluetooth": (31, 3), "can": (29, 3),
            "tipc": (30, 1),
            "rds": (21, 5), "key": (15, 3), "raw icmp": (2, 3), "raw icmp6": (10, 3), "kcm": (41, 2), "qipcrtr": (42, 2)}
for name, (family, kind) in families.items():
    try:
        socket.socket(family, kind, 1 if name.startswith("raw") else 0)
        print("ALLOWED", name)
    except OSError:
        pass
try:
    os.clone_done = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
    if os.clone_done == 0: os._exit(0)
    if os.clone_done > 0: print("ALLOWED clone user namespace")
except OSError:
    pass
"""


def test_system_calls_that_break_kernels(env: DockerEnvironment) -> None:
    """Threat: a kernel feature that no build tool needs is the way out: VM sockets, io_uring, keyrings, mounts."""
    if env.run("uname -m").unwrap().output.strip() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    assert probe(env, REFUSED) == ""


THIRTY_TWO = """
#include <stdio.h>
int main(void) {
    long r;  /* getpid by the 32-bit gate: would be a way around a filter of 64-bit numbers */
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory");
    printf("%s\\n", r > 0 ? "ALLOWED" : "refused");
    return 0;
}
"""


def test_foreign_system_call_tables(env: DockerEnvironment) -> None:
    """Threat: the 32-bit table has other numbers, so a filter of 64-bit numbers does not see those calls."""
    if env.run("uname -m").unwrap().output.strip() != "x86_64":
        pytest.skip("x86_64 only")
    env.write("/tmp/gate.c", THIRTY_TWO).unwrap()
    said = env.run("gcc -o /tmp/gate /tmp/gate.c && /tmp/gate", timeout_seconds=60).unwrap()
    assert "ALLOWED" not in said.output
    assert said.output == "refused\n" or said.signal == "SIGSEGV" or said.exit_code == 139


def test_only_the_writable_places_are_writable(default: DockerEnvironment) -> None:
    """Threat: a command changes the system, the guest's own code, or the spilled output of other commands."""
    env = default
    search = "find / -xdev -writable -not -type l 2>/dev/null | sort | head -20"
    assert env.run(search, timeout_seconds=60).unwrap().output.split() == ["/home/agent", "/tmp", "/var/tmp", "/workspace"]
    places = "/ /usr /etc /dev /run /run/gamebox /.gamebox /var/lib"
    touched = env.run(f"for d in {places}; do touch $d/probe 2>/dev/null && echo WROTE $d; done; true")
    assert touched.unwrap().output == ""
    mounted = env.run("awk '$4 ~ /(^|,)rw(,|$)/ {print $2}' /proc/mounts").unwrap().output.split()
    assert {m for m in mounted if not m.startswith(("/proc", "/sys", "/dev"))} <= {
        "/workspace",
        "/home/agent",
        "/tmp",
        "/var/tmp",
        "/run/gamebox",
    }
    spilled = env.run("seq 100000", keep_output_bytes=100).unwrap().spill_path
    assert spilled is not None
    attack = f"rm -f {spilled}; echo x >> {spilled}; mv {spilled} /tmp; truncate -s 0 {spilled}; wc -l < {spilled}"
    assert env.run(attack).unwrap().stdout == "100000\n"
    assert not env.write(spilled, "forged").ok
    assert not env.delete(spilled).ok
    assert not env.move(spilled, "/tmp/moved").ok


def test_proc_and_sys_cannot_be_written(env: DockerEnvironment) -> None:
    """Threat: settings of the kernel, or a command that makes the guest the first victim when memory runs out."""
    wrote = env.run(
        "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper /proc/self/oom_score_adj "
        "/proc/self/coredump_filter /proc/self/comm /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/*/tasks "
        "/sys/fs/cgroup/*/release_agent "
        "/proc/sys/fs/binfmt_misc/register; do (echo 0 > $f) 2>/dev/null && echo WROTE $f; done; cat /proc/self/oom_score_adj"
    )
    landlock = env.run("cat /sys/kernel/security/lsm 2>/dev/null; true").unwrap().output
    lines = wrote.unwrap().output.split("\n")
    assert lines[-2] == "1000", "a command lowered its own score"
    assert lines[:-2] == [], landlock


def test_secrets_of_the_host_are_not_there(env: DockerEnvironment) -> None:
    """Threat: the engine's socket, block devices, or the host's variables are within reach."""
    found = env.run(
        "ls -d /var/run/docker.sock /run/docker.sock /run/containerd /dev/sd* /dev/vd* /dev/nvme* "
        "/dev/mem /dev/kmsg /dev/kvm /dev/fuse "
        "/dev/loop* /host 2>/dev/null; env | grep -iE 'key|token|secret|docker|aws' ; find / -xdev -type b 2>/dev/null; "
        "head -c 1 /proc/kcore 2>/dev/null | wc -c"
    )
    assert found.unwrap().output == "0\n"


def test_no_network(env: DockerEnvironment) -> None:
    """Threat: data leaves by a route, by DNS, or by a service of the host or of a neighbour."""
    source = """
import socket, os
print(sorted(os.listdir("/sys/class/net")))
for address in (("1.1.1.1", 53), ("169.254.169.254", 80), ("172.17.0.1", 22), ("172.17.0.1", 2375),
                ("10.0.0.1", 80), ("8.8.8.8", 443)):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(1)
            try:
                s.connect(address); s.send(b"x"); print("REACHED", address)
            except OSError: pass
try: print("RESOLVED", socket.getaddrinfo("example.com", 80))
except OSError: pass
"""
    assert probe(env, source) == "['lo']\n"


def test_zombies_are_reaped(env: DockerEnvironment) -> None:
    """Threat: processes that nobody waits for use up the sandbox's processes."""
    env.run("for i in $(seq 10); do (setsid sh -c 'sleep 0.2' &) ; done").unwrap()
    env.run("sleep 0.6").unwrap()
    assert eventually(lambda: env.run("grep -l '^State:.Z' /proc/[0-9]*/status | wc -l").unwrap().output == "0\n")
