"""Ways out that have been used elsewhere, tried in a hardened sandbox: each has to come to nothing."""

from __future__ import annotations

import os
import re

import pytest

from sandbox import DockerEnvironment, Limits

from .probing import probe

pytestmark = pytest.mark.engine


def test_nothing_of_the_kernel_is_writable(env: DockerEnvironment) -> None:
    """Threat: a file below /proc, /sys or a cgroup that is left writable sets the host's kernel or the sandbox's own limits."""
    source = """
import os
mine = {str(os.getpid()), "self", "thread-self"}
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        if folder == "/proc":
            folders[:] = [f for f in folders if not f.isdigit()]
        for name in files:
            path = os.path.join(folder, name)
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            if not mine & set(path.split("/")): print("WRITABLE", path)
"""
    assert probe(env, source) == ""


def test_secrets_of_the_kernel(env: DockerEnvironment) -> None:
    """Threat: memory, keys, timers or firmware tables of the host can be read where the engine masks them badly."""
    for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats"):
        read = env.run(f"head -c 100 {path} 2>/dev/null | wc -c").unwrap().output.strip()
        assert read == "0", path
    assert env.run("ls /sys/firmware /proc/acpi /proc/scsi 2>/dev/null | grep -v :$ | grep .").unwrap().output == ""
    assert env.run("dmesg").unwrap().exit_code != 0


def test_namespaces_are_its_own(env: DockerEnvironment) -> None:
    """Threat: a namespace is shared with the host, and with it processes, mounts, shared memory or the network."""
    asked = env.run("for n in pid mnt net ipc uts; do echo $n $(readlink /proc/self/ns/$n); done").unwrap()
    inside = dict(line.split() for line in asked.output.splitlines())
    for name, there in inside.items():
        assert there != os.readlink(f"/proc/self/ns/{name}"), name
    pids = env.run("ls /proc | grep -c '^[0-9]*$'").unwrap().output
    assert int(pids) < 20
    assert "dockerd" not in env.run("cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true").unwrap().output


def test_other_namespaces_cannot_be_entered(env: DockerEnvironment) -> None:
    """Threat: setns or a new user namespace gives capabilities that the sandbox lacks."""
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    for name in ("user", "mnt", "net", "pid"):
        try: fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError: continue
        if libc.setns(fd, 0) == 0: print("ENTERED", pid, name)
for flags in (0x10000000, 0x10020000, 0x50000000):
    if libc.unshare(flags) == 0: print("UNSHARED", hex(flags))
"""
    assert probe(env, source) == ""


def test_set_id_programs_give_nothing(env: DockerEnvironment) -> None:
    """Threat: su, mount, passwd and the like of the image, or a set-id copy that a command makes, change the user."""
    tried = (
        "for p in $(find / -xdev -perm /6000 -type f 2>/dev/null); do "
        "echo x | timeout 2 $p -c id 2>&1 | grep -E 'uid=0|euid=0'; done; true"
    )
    assert env.run(tried, timeout_seconds=60).unwrap().output == ""
    made = env.run("for d in . /tmp; do cp $(command -v id) $d/mine; chmod 6777 $d/mine; $d/mine; done")
    assert re.findall(r"euid|egid|uid=0", made.unwrap().output) == []


def test_limits_cannot_be_raised(env: DockerEnvironment) -> None:
    """Threat: a command raises its own limits, its priority, or lowers its rank as a victim when memory runs out."""
    source = """
import os, resource
for name in ("NOFILE", "FSIZE", "CORE"):
    soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    try: resource.setrlimit(getattr(resource, "RLIMIT_" + name), (hard + 1, hard + 1)); print("RAISED", name)
    except (OSError, ValueError): pass
for act in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
            lambda: open("/proc/self/oom_score_adj", "w").write("-500"), lambda: open("/proc/self/oom_adj", "w").write("-16")):
    try: act(); print("ALLOWED", act)
    except OSError: pass
"""
    assert probe(env, source) == ""


FOLDERS = [*(f"/proc/self/fd/{n}" for n in (3, 7, 8, 9)), "/proc/1/cwd", "/proc/1/root"]
USUAL = "bin boot dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var"


@pytest.mark.parametrize("cwd", FOLDERS)
def test_a_working_folder_that_is_a_descriptor(env: DockerEnvironment, cwd: str) -> None:
    """Threat: a working folder by way of a descriptor that was left open leads to the host's file system (CVE-2024-21626)."""
    answer = env.run("pwd; ls; ls ../../../../../..; cat ../../../../../../etc/hostname", cwd=cwd, session=None)
    shown = answer.unwrap().output if answer.ok else ""
    assert not (set(os.listdir("/")) - set(USUAL.split())) & set(shown.split())
    with open("/etc/hostname", encoding="utf-8") as file:
        assert file.read().strip() not in shown.split()


SELFISH = """
import mmap, os
for name in ("oom_score_adj", "oom_adj"):
    for value in ("-1000", "-500", "0"):
        try: open("/proc/self/" + name, "w").write(value)
        except OSError: pass
try:
    with open("/dev/shm/full", "wb") as file:
        while True: file.write(bytes(1 << 20))
except OSError: pass
kept = []
while True: kept.append(bytearray(8 << 20))
"""


def test_a_command_that_would_rather_have_the_guest_killed() -> None:
    """Threat: a command lowers its oom_score_adj, fills /dev/shm and memory, and the kernel takes the guest instead."""
    with DockerEnvironment(limits=Limits(memory_bytes=96 << 20)) as small:
        for _ in range(3):
            assert small.run(argv=["python3", "-c", SELFISH], timeout_seconds=30).unwrap().oom_killed
            assert small.run("echo alive").unwrap().output == "alive\n"
        several = " & ".join(["python3 selfish.py"] * 4)
        small.write("selfish.py", SELFISH).unwrap()
        small.run(f"{several} & wait", timeout_seconds=30)
        assert small.run("rm -f /dev/shm/full; echo alive").unwrap().output == "alive\n"


def test_all_names_of_a_file_system_used_up() -> None:
    """Threat: empty files without number use up what the guest needs to write anything at all, or the host's memory."""
    with DockerEnvironment(limits=Limits(memory_bytes=64 << 20, disk="memory")) as small:
        fill = "import os\nfor n in range(10**6): os.close(os.open(f'/workspace/n{n}', os.O_CREAT))"
        assert "No space left" in probe(small, fill)
        assert not small.write("another", "x").ok
        assert small.run("echo alive; find . -name 'n*' -delete").unwrap().output == "alive\n"
        assert small.write("another", "x").ok


def test_neighbours_do_not_see_each_other(env: DockerEnvironment) -> None:
    """Threat: two sandboxes with the same uid signal each other, or share memory, queues, sockets, files or a network."""
    with DockerEnvironment(limits=Limits(memory_bytes=128 << 20)) as other:
        marked = (
            "import ctypes, socket, time\nlibc = ctypes.CDLL(None)\nlibc.shmget(4242, 4096, 0o1666)\n"
            "a = socket.socket(socket.AF_UNIX); a.bind('\\0neighbour'); a.listen()\n"
            "b = socket.socket(); b.bind(('127.0.0.1', 4242)); b.listen()\nopen('/dev/shm/mark', 'w').write('x')\n"
            "open('/tmp/mark', 'w').write('x')\nprint('up', flush=True)\ntime.sleep(60)"
        )
        other.write("mark.py", marked).unwrap()
        going = other.run("exec python3 -u mark.py", background=True).unwrap().id
        other.run("for i in $(seq 50); do [ -e /tmp/mark ] && break; sleep 0.1; done; [ -e /tmp/mark ]").unwrap()
        look = (
            "import ctypes, os, socket\nlibc = ctypes.CDLL(None)\nif libc.shmget(4242, 0, 0) >= 0: print('MEMORY')\n"
            "for family, address in ((socket.AF_UNIX, '\\0neighbour'), (socket.AF_INET, ('127.0.0.1', 4242))):\n"
            "    try: socket.socket(family).connect(address); print('REACHED', address)\n    except OSError: pass\n"
            "print([p for p in ('/dev/shm/mark', '/tmp/mark') if os.path.exists(p)])"
        )
        assert probe(env, look) == "[]\n"
        env.run("kill -9 -1; true", session=None)
        assert other.logs(going).unwrap().running
