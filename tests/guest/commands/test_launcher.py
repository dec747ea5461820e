"""A runner's side of handing a command over: whatever is killed meanwhile, it begins once or is told as killed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.guest.commands.launch import packets
from sandbox.guest.commands.launch.packets import Spec
from sandbox.guest.commands.launch.spawner import LAUNCHER_FD, open_memory_file
from sandbox.guest.protocol.faults import Fault
from sandbox.local.launcher import find_launcher

SECONDS = 10.0
ENV = {"PATH": "/bin:/usr/bin"}


class Handed:
    """The guest's end of one runner of a launcher of its own."""

    def __init__(self, control: socket.socket) -> None:
        data, (fd,), _, _ = socket.recv_fds(control, 64, 1)
        self.pid = packets.READY.unpack(data)[1]
        self.socket = socket.socket(fileno=fd)
        self.socket.settimeout(SECONDS)

    def said(self, kind: bytes) -> bytes:
        """The next packet, which is of that kind; what is told of killed children is passed over."""
        while (packet := self.socket.recv(4096))[:1] == b"K":
            """A detail that comes with many ends."""
        assert packet[:1] == kind, packet
        return packet

    def leader(self) -> int:
        """The leader that says it is ready."""
        return int(packets.READY.unpack(self.said(b"L"))[1])

    def next(self) -> int:
        """Ask for the next leader, and wait until it is ready."""
        self.socket.send(packets.NEXT)
        return self.leader()

    def ran_alone(self, folder: Path, word: str) -> None:
        """Hand the next leader a command that writes ``word``: it is all that was ever written."""
        self.next()
        self.hand(f"echo {word} >> {folder}/ran")
        assert self.killed() == 0
        assert (folder / "ran").read_text() == f"{word}\n"

    def killed(self) -> int:
        """The status of a leader that ended, with nothing left below its runner."""
        _, status, alone, _, _ = packets.STATUS.unpack(self.said(b"X"))
        assert alone
        return int(os.waitstatus_to_exitcode(status))

    def hand(self, command: str) -> None:
        """Send a spec of a shell command."""
        self.send(Spec(["/bin/sh", "-c", command], ENV, "/").pack(os.getuid(), os.getgid()))

    def send(self, packet: bytes, descriptors: int = 3) -> None:
        """Send a packet with so many descriptors, all of them of /dev/null."""
        null = os.open("/dev/null", os.O_RDWR)
        socket.send_fds(self.socket, [packet], [null] * descriptors)
        os.close(null)

    def failed(self) -> tuple[str, int]:
        """The stage and the errno of a command that could not be started; its leader has ended."""
        _, stage, number = packets.FAILURE.unpack(self.said(b"E"))
        assert self.killed() == 127
        return packets.STAGES[stage], number

    def kill(self, leader: int) -> None:
        os.kill(leader, signal.SIGKILL)
        self.said(b"D")


# Runs the program that its argument names as a kernel before 5.9 would: without close_range, by a system call filter.
OLD_KERNEL = """
import ctypes, os, struct, sys
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 436), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000))
table = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(table)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program): sys.exit(os.strerror(ctypes.get_errno()))
if libc.syscall(436, 3, 3, 0) != -1: sys.exit("close_range works")
os.execv(sys.argv[1], sys.argv[1:])
"""
INHERITED = (4, 9, 77, 200)  # by the launcher, which has no use for them


@pytest.fixture
def runner() -> Iterator[Handed]:
    with launched([str(find_launcher())]) as handed:
        yield handed


@contextlib.contextmanager
def launched(argv: list[str]) -> Iterator[Handed]:
    """Start a launcher. Yields its first runner."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, control:
        move = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), fd) for fd in (LAUNCHER_FD, *INHERITED)]
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=move)
        theirs.close()
        control.send(packets.SETTING.pack(False, False))
        control.settimeout(SECONDS)
        handed = Handed(control)
        yield handed
        handed.socket.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_command_begins_with_the_next_leader(runner: Handed, tmp_path: Path) -> None:
    first = runner.leader()
    runner.hand(f"echo once >> {tmp_path}/ran")
    assert runner.killed() == 0
    runner.socket.send(packets.NEXT)
    second = runner.leader()
    assert second != first
    runner.kill(second)
    runner.hand(f"echo twice >> {tmp_path}/ran")  # before the guest hears of it
    runner.next()
    assert (tmp_path / "ran").read_text() == "once\n"  # it asks before it begins
    runner.socket.send(packets.GO)
    assert runner.killed() == 0
    assert (tmp_path / "ran").read_text() == "once\ntwice\n"


def test_a_command_that_a_leader_took_into_its_death_is_told_as_killed(runner: Handed, tmp_path: Path) -> None:
    """It was read off the socket by a process that died before it could say so: nobody has it, and nobody may wait for it."""
    runner.kill(runner.leader())
    runner.next()
    runner.socket.send(packets.GO)
    assert runner.killed() == -signal.SIGKILL
    runner.ran_alone(tmp_path, "next")


def test_what_was_left_for_a_leader_that_died_too_is_not_for_the_next_command(runner: Handed, tmp_path: Path) -> None:
    runner.kill(runner.leader())
    runner.hand(f"echo first >> {tmp_path}/ran")
    runner.kill(runner.next())
    runner.socket.send(packets.GO)  # to one that does not hear it
    runner.next()
    runner.socket.send(packets.GO)
    assert runner.killed() == -signal.SIGKILL
    runner.ran_alone(tmp_path, "second")


def test_a_command_that_is_not_wanted_any_more_never_begins(runner: Handed, tmp_path: Path) -> None:
    runner.kill(runner.leader())
    runner.hand(f"echo no >> {tmp_path}/ran")
    leader = runner.next()
    runner.socket.close()
    for _ in range(1000):
        if not Path(f"/proc/{leader}").exists():
            break
        time.sleep(0.01)
    assert not Path(f"/proc/{leader}").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("argv", "cwd", "expected"),
    [
        (["nothere"], "/", ("exec", errno.ENOENT)),
        (["bin"], "/", ("exec", errno.ENOENT)),  # a folder in a folder of PATH
        ([""], "/", ("exec", errno.ENOENT)),
        (["/nothere/x"], "/", ("exec", errno.ENOENT)),
        (["/etc/passwd/x"], "/", ("exec", errno.ENOTDIR)),
        (["/etc/passwd"], "/", ("exec", errno.EACCES)),
        (["/etc"], "/", ("exec", errno.EACCES)),
        (["/bin/true", "x" * (1 << 20)], "/", ("exec", errno.E2BIG)),
        (["/bin/true", *["x" * 1000] * 10_000], "/", ("exec", errno.E2BIG)),
        (["/bin/true"], "/nothere", ("cwd", errno.ENOENT)),
        (["/bin/true"], "/etc/passwd", ("cwd", errno.ENOTDIR)),
    ],
)
def test_what_cannot_be_started_is_reported_with_its_errno(
    runner: Handed, argv: list[str], cwd: str, expected: tuple[str, int]
) -> None:
    runner.leader()
    env = {"PATH": "/usr:/bin"}
    packet = Spec(argv, env, cwd).pack(os.getuid(), os.getgid())
    if len(packet) <= packets.SPEC_IN_PACKET:
        runner.send(packet)
    else:
        file = open_memory_file(packet)
        socket.send_fds(runner.socket, [packets.SPEC_IN_FILE], [0, 1, 2, file])
        os.close(file)
    assert runner.failed() == expected


def test_a_file_that_is_no_program_is_reported_by_exec(runner: Handed, tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o755)
    runner.leader()
    runner.send(Spec(["empty"], {"PATH": str(tmp_path)}, "/", announce=True).pack(os.getuid(), os.getgid()))
    runner.said(b"G")
    assert runner.failed() == ("exec", errno.ENOEXEC)


def test_a_program_is_found_as_exec_finds_it(runner: Handed, tmp_path: Path) -> None:
    """Without PATH in the usual folders, in an empty entry of PATH here, and not where it may not be executed."""
    (tmp_path / "true").touch(0o644)
    for env in ({}, {"PATH": f"{tmp_path}:/nothere:/bin"}, {"PATH": f"{'x' * 5000}:"}):
        runner.leader() if env == {} else runner.next()
        runner.send(Spec(["true"], env, "/bin").pack(os.getuid(), os.getgid()))
        assert runner.killed() == 0


@pytest.mark.parametrize("descriptors", [0, 2, 4, 5, 6])
def test_a_spec_without_its_descriptors_is_refused(runner: Handed, descriptors: int) -> None:
    runner.leader()
    runner.send(Spec(["/bin/true"], {}, "/").pack(os.getuid(), os.getgid()), descriptors)
    assert runner.failed() == ("start", errno.EBADMSG if descriptors < 6 else errno.EMSGSIZE)


@pytest.mark.parametrize("packet", [b"x", b"F", bytes(packets.HEADER.size), b"x" * packets.SPEC_IN_PACKET])
def test_what_is_no_spec_is_refused(runner: Handed, packet: bytes) -> None:
    runner.leader()
    runner.send(packet)
    assert runner.failed() == ("start", errno.EBADMSG)


def test_a_packet_that_is_cut_is_refused(runner: Handed) -> None:
    runner.leader()
    runner.send(Spec(["/bin/true", "x" * packets.SPEC_IN_PACKET], {}, "/").pack(os.getuid(), os.getgid()))
    assert runner.failed() == ("start", errno.EMSGSIZE)


def test_a_kernel_without_close_range_leaves_a_command_no_descriptor_either(tmp_path: Path) -> None:
    with launched([sys.executable, "-c", OLD_KERNEL, str(find_launcher())]) as runner:
        test_a_command_inherits_nothing_but_its_descriptors(runner, tmp_path)


# Lets its parent end, then starts a child with the number that the parent had, and leaves that behind. It ends with status 7 once
# there is a file ``go``.
SAME_NUMBER = """
import ctypes, os, struct, sys, time
leader = os.getppid()
os.chdir(sys.argv[1])
open("seen", "w").close()
if os.fork(): os._exit(0)
os.setsid()  # the number is in use as long as it is that of a session
while os.path.exists(f"/proc/{leader}"): time.sleep(0.001)
number = ctypes.c_int(leader)
arguments = ctypes.create_string_buffer(struct.pack("8Q", 0, 0, 0, 0, 17, 0, 0, 0) + struct.pack("2Q", ctypes.addressof(number), 1))
while (child := ctypes.CDLL(None).syscall(435, arguments, 80)) < 0: time.sleep(0.001)
if child == 0:
    end = time.monotonic() + 60
    while not os.path.exists("go") and time.monotonic() < end: time.sleep(0.001)
    os._exit(7)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose the number of a process")
def test_an_orphan_with_the_number_of_the_leader_is_not_the_leader(runner: Handed, tmp_path: Path) -> None:
    """Its status replaced that of the command, which had been reported."""
    leader = runner.leader()
    (tmp_path / "same").write_text(SAME_NUMBER)
    runner.hand(f"{sys.executable} {tmp_path}/same {tmp_path} & until [ -e {tmp_path}/seen ]; do sleep 0.01; done")
    _, status, alone, _, _ = packets.STATUS.unpack(runner.said(b"X"))
    (tmp_path / "go").touch()
    assert (status, alone) == (0, 0)
    runner.said(b"Z")
    assert runner.next() != leader


def test_a_command_inherits_nothing_but_its_descriptors(runner: Handed, tmp_path: Path) -> None:
    runner.leader()
    state = os.open(tmp_path / "state", os.O_RDWR | os.O_CREAT)
    command = "ls /proc/self/fd; cat /proc/self/status; umask; env"
    out = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    packet = Spec(["/bin/sh", "-c", command], ENV, "/", state_fd=9).pack(os.getuid(), os.getgid())
    socket.send_fds(runner.socket, [packet], [out, out, out, state])
    assert runner.killed() == 0
    shown = (tmp_path / "out").read_text().split("\n")
    assert shown[:5] == ["0", "1", "2", "3", "9"]  # 3 is the folder that ls lists
    status = dict(line.split(":\t") for line in shown if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) == 0
    assert {"0022", "PATH=/bin:/usr/bin"} <= set(shown)
    for fd in (state, out):
        os.close(fd)


def test_arguments_and_variables_arrive_as_they_were(runner: Handed, tmp_path: Path) -> None:
    runner.leader()
    out = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    odd = ["", "ä", "a\nb", "\udcff", *map(str, range(300))]
    env = {f"V{n}": text for n, text in enumerate(odd)} | ENV
    spec = Spec(["/bin/sh", "-c", 'printf "%s\\0" "$@" | cat - /proc/self/environ', "sh", *odd], env, "/")
    socket.send_fds(runner.socket, [spec.pack(os.getuid(), os.getgid())], [out] * 3)
    assert runner.killed() == 0
    shown = (tmp_path / "out").read_bytes().split(b"\0")
    os.close(out)
    assert shown[: len(odd)] == [os.fsencode(text) for text in odd]
    assert {os.fsencode(f"{name}={value}") for name, value in env.items()} <= set(shown[len(odd) :])


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_program_can_be_given_is_a_fault(text: str) -> None:
    for argv, env, cwd in ((["x", text], {}, "/"), (["x"], {"A": text}, "/"), (["x"], {}, "/" + text)):
        with pytest.raises(Fault, match="invalid_arguments"):
            Spec(argv, env, cwd)
