"""What a hostile command may use up: its own share, and never the guest's, the host's or another command's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode
from tests.integration.observing import guest_pid, of_commands, resident_bytes, within

from .probing import probe

pytestmark = [pytest.mark.engine, pytest.mark.alone]

MIB = 1 << 20


@pytest.fixture(scope="module")
def small_sandboxes() -> Iterator[list[DockerEnvironment]]:
    made: list[DockerEnvironment] = []
    yield made
    for env in made:
        env.close(wait=True)


@pytest.fixture
def tight(small_sandboxes: list[DockerEnvironment]) -> DockerEnvironment:
    """A small sandbox that every test here leaves in use by the next; another one when a test has lost it."""
    if not small_sandboxes or not small_sandboxes[-1].run("true", session=None).ok:
        limits = Limits(memory_bytes=160 * MIB, disk="memory", pids=128, cpus=1.0, spill_bytes=8 * MIB)
        small_sandboxes.append(DockerEnvironment(limits=limits).start())
    return small_sandboxes[-1]


def test_memory_hog(tight: DockerEnvironment) -> None:
    """Threat: a command takes all memory and the kernel takes the guest for it."""
    answer = tight.run("python3 -c 'x = bytearray(400 << 20)'").unwrap()
    assert answer.oom_killed
    assert answer.exit_code == 137
    direct = tight.run(argv=["python3", "-c", "x = bytearray(400 << 20)"])
    assert direct.unwrap().oom_killed
    assert direct.unwrap().signal == "SIGKILL"
    assert [n.code for n in direct.notices] == ["out_of_memory"]
    assert not tight.run("kill -9 $$").unwrap().oom_killed
    assert tight.run("echo alive").unwrap().output == "alive\n"


LEFT_BEHIND = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
made, message = [0, 0, 0], ctypes.create_string_buffer(b"\\1" + bytes(8191))
for _ in range(2000):  # System V memory, queues and semaphores, left behind
    segment = libc.shmget(0, 1 << 20, 0o1600)
    if segment >= 0 and (at := libc.shmat(segment, None, 0)) != ctypes.c_void_p(-1).value:
        ctypes.memset(at, 1, 1 << 20)
        made[0] += 1
    queue = libc.msgget(0, 0o1600)
    if queue >= 0:
        while libc.msgsnd(queue, message, 8000, 0o4000) == 0: pass
        made[1] += 1
    made[2] += libc.semget(0, 250, 0o1600) >= 0
print(*made)
"""


def test_what_outlives_its_process_is_bounded(tight: DockerEnvironment) -> None:
    """Threat: System V objects hold memory that no kill gives back, until every new process is killed for want of it."""
    memory, queues, semaphores = map(int, probe(tight, LEFT_BEHIND).split())
    assert memory <= tight.limits.shm_place_bytes // MIB
    assert queues <= 64
    assert semaphores <= 64
    assert len(tight.run("cat /proc/sysvipc/shm").unwrap().output.splitlines()) == 1  # the heading
    tight.run("ipcrm --all=msg --all=sem").unwrap()


def test_many_small_hogs(tight: DockerEnvironment) -> None:
    """Threat: so many processes share the memory that the guest is the largest of them."""
    source = "for i in $(seq 60); do python3 -c 'import time; x = bytearray(6 << 20); time.sleep(1)' & done; wait"
    tight.run(source, timeout_seconds=20)
    assert tight.run("echo alive").unwrap().output == "alive\n"


def test_memory_in_files(tight: DockerEnvironment) -> None:
    """Threat: full tmpfs folders, shared memory and memory files leave nothing for the guest."""
    filled = tight.run(
        "for d in /workspace ~ /tmp /dev/shm; do head -c 999M /dev/zero > $d/full; done 2>&1 | grep -c 'No space'"
    )
    assert filled.unwrap().output == "4\n"
    assert "disk_nearly_full" in [n.code for n in filled.notices]
    assert tight.write("more", "x" * 10000).code is ErrorCode.no_space  # type: ignore[union-attr]
    assert tight.upload(bytes(MIB), "more").code is ErrorCode.no_space  # type: ignore[union-attr]
    hog = tight.run("python3 -c 'x = bytearray(400 << 20)'").unwrap()
    assert hog.oom_killed
    memory_file = "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))"
    for _ in range(5):  # such memory comes free a moment after its process has died, when the next is hungry already
        assert tight.run(argv=["python3", "-c", memory_file]).unwrap().oom_killed
    assert tight.run("echo alive").unwrap().output == "alive\n"
    tight.run("rm -f /workspace/full ~/full /tmp/full /dev/shm/full").unwrap()
    assert tight.write("more", "x" * 10000).ok


STATE_ATTACKS = (
    "head -c 2G /dev/zero >&199",
    "yes >&199",
    "truncate -s 1T /proc/self/fd/199",
    "head -c 900000 /dev/urandom >&199",
    "printf '/etc\\0declare -x A=\"1\"\\0' >&199",
    "printf /junk >&199",
    "printf '/%05000d\\0' 0 >&199; exec 199>&-",
    "exec 199>&-",
    'for i in $(seq 3 255); do eval "exec $i>&-"; done',
)


def test_the_state_descriptor_is_no_hiding_place(tight: DockerEnvironment) -> None:
    """Threat: gigabytes written to the session's state stay in memory with the guest, or become the session's state."""
    tight.run("cd /tmp; export KEPT=1").unwrap()
    for attack in STATE_ATTACKS:
        answer = tight.run(attack, timeout_seconds=10)
        assert answer.ok, (attack, answer)
        assert tight.run("echo $KEPT $PWD").unwrap().output == "1 /tmp\n", attack
    mapped = "import mmap, os\nm = mmap.mmap(199, 1 << 20)\nm[:] = bytes(1 << 20)\nos.close(199)"
    assert (
        tight.run(argv=["python3", "-c", "import os; os.write(1, b'no state here')"]).unwrap().output == "no state here"
    )
    tight.run(f"python3 -c '{mapped}'").unwrap()
    assert tight.run("echo $KEPT").unwrap().output == "1\n"


def test_a_folder_that_is_none_does_not_hold_the_session(tight: DockerEnvironment) -> None:
    """Threat: every later command of a session fails, because a command left a folder that cannot be entered."""
    for folder in ("/%0300d", "/nothing%d", "/etc/passwd%.0d"):
        state = folder + '\\0declare -x A="1"\\n\\0\\0\\0'
        tight.run(f"printf '{state}' 0 >&199; exec 199>&-").unwrap()
        refused = tight.run("true")
        assert refused.code is ErrorCode.working_directory_invalid, (folder, refused)  # type: ignore[union-attr]
        assert "back in the workspace" in refused.hint  # type: ignore[union-attr]
        assert tight.run("pwd").unwrap().output == "/workspace\n"


def test_processes_used_up(tight: DockerEnvironment) -> None:
    """Threat: a command that takes every process keeps all others, and the operations on files, from working."""
    bomb = tight.run("for i in $(seq 400); do sleep 1000 & done 2>/dev/null; wait", background=True).unwrap()
    time.sleep(1.0)
    assert tight.write("file", "text").ok
    assert tight.read("file").unwrap().content == "text"
    starved, _ = within(4.0, lambda: [tight.run("true", timeout_seconds=1, session=None) for _ in range(2)])
    for answer in starved:
        assert answer.ok or answer.code in {ErrorCode.too_many_processes, ErrorCode.timeout}, answer
    assert tight.kill(bomb.id).unwrap().survivors == 0
    assert of_commands(tight) == []
    assert tight.run("echo alive").unwrap().output == "alive\n"


def test_cpu_share(tight: DockerEnvironment) -> None:
    """Threat: spinning processes slow the host beyond the sandbox's share."""
    source = (
        "import os, time\nfor _ in range(3): os.fork()\nt = time.monotonic()\nwhile time.monotonic() - t < 1.5: pass\n"
    )
    read = "cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || awk '/usage_usec/ {print $2 * 1000}' /sys/fs/cgroup/cpu.stat"
    before, started = int(tight.run(read).unwrap().output), time.monotonic()
    probe(tight, source)
    used = (int(tight.run(read).unwrap().output) - before) / 1e9
    assert used <= (time.monotonic() - started) * 1.2 + 0.2


FLOODS = {
    "yes": "yes",
    "no newline": "tr '\\0' x < /dev/zero",
    "both streams": "yes >&2 & yes",
    "byte by byte": 'exec python3 -c \'import os\nwhile True: os.write(1, b"x"); os.write(2, b"y")\'',
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods(tight: DockerEnvironment, name: str) -> None:
    """Threat: output without end fills the memory of guest or host, or keeps others from being answered."""
    host, guest = resident_bytes(os.getpid()), resident_bytes(guest_pid(tight))
    answers: list[Any] = []
    flood = threading.Thread(target=lambda: answers.append(tight.run(FLOODS[name], timeout_seconds=2.0)))
    flood.start()
    tight.write("beside", "the flood").unwrap()
    while flood.is_alive():
        within(1.0, lambda: tight.run("true", session=None).unwrap())
        within(1.0, lambda: tight.read("beside").unwrap())
    flood.join()
    (answer,) = answers
    assert answer.code is ErrorCode.timeout
    result = answer.result
    assert result.output_bytes > len(result.output)
    assert result.truncated
    assert len(result.output) < 80_000
    assert resident_bytes(os.getpid()) - host < 60 * MIB
    assert resident_bytes(guest_pid(tight)) - guest < 30 * MIB
    assert of_commands(tight) == []


def test_a_gibibyte_of_output(tight: DockerEnvironment) -> None:
    """Threat: much output at once, of bytes that are no text."""
    host, guest = resident_bytes(os.getpid()), resident_bytes(guest_pid(tight))
    answer = tight.run("head -c 1G /dev/zero | tr '\\0' '\\377'; echo end", timeout_seconds=60)
    result = answer.unwrap()
    assert result.output_bytes == (1 << 30) + 4
    assert result.truncated
    assert result.spill_truncated
    assert result.output.startswith("\ufffd")
    assert result.output.endswith("end\n")
    assert resident_bytes(os.getpid()) - host < 60 * MIB
    assert resident_bytes(guest_pid(tight)) - guest < 30 * MIB


def test_output_of_many_commands_is_bounded(tight: DockerEnvironment) -> None:
    """Threat: what the guest remembers of ended commands adds up (each writes byte by byte, which is the dearest way)."""
    guest = resident_bytes(guest_pid(tight))
    drip = "import os\nfor i in range(30000): os.write(1, b'x'); os.write(2, b'y')"
    for _ in range(12):
        tight.run(argv=["python3", "-c", drip], timeout_seconds=30).unwrap()
    assert resident_bytes(guest_pid(tight)) - guest < 12 * 4 * MIB


def test_files_and_commands_in_crowds(env: DockerEnvironment) -> None:
    """Threat: 64 callers at once starve or mix up one another."""
    wrong: list[object] = []

    def one(number: int) -> None:
        text = f"{number}\n" * 1000
        for answer in (
            env.write(f"crowd/{number}", text),
            env.read(f"crowd/{number}"),
            env.run(f"echo {number}", session=None),
        ):
            if not answer.ok:
                wrong.append(answer)
        if env.read(f"crowd/{number}").unwrap().content != text:
            wrong.append(number)

    crowd = [threading.Thread(target=one, args=(n,)) for n in range(64)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
    assert wrong == []


def test_the_background_limit(env: DockerEnvironment) -> None:
    """Threat: background commands without end."""
    ids = []
    for _ in range(env.limits.background_commands):
        ids.append(env.run("exec sleep 1000", background=True).unwrap().id)
    refused = env.run("exec sleep 1000", background=True)
    assert refused.code is ErrorCode.too_many_commands  # type: ignore[union-attr]
    assert env.run("echo foreground").unwrap().output == "foreground\n"
    for ident in ids:
        assert env.kill(ident).unwrap().killed == 1
    assert of_commands(env) == []
