"""A runner's side of handing a command over: whatever is killed meanwhile, it begins once or is told as killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.guest.commands import zygote

SECONDS = 10.0
SETTING = {"isolated": False, "uid": os.getuid(), "gid": os.getgid()}


class Handed:
    """The guest's end of one runner of a zygote of its own."""

    def __init__(self, control: socket.socket) -> None:
        data, (fd,), _, _ = socket.recv_fds(control, 64, 1)
        self.pid = zygote.READY.unpack(data)[1]
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
        return int(zygote.READY.unpack(self.said(b"L"))[1])

    def next(self) -> int:
        """Ask for the next leader, and wait until it is ready."""
        self.socket.send(zygote.NEXT)
        return self.leader()

    def ran_alone(self, folder: Path, word: str) -> None:
        """Hand the next leader a command that writes ``word``: it is all that was ever written."""
        self.next()
        self.hand(f"echo {word} >> {folder}/ran")
        assert self.killed() == 0
        assert (folder / "ran").read_text() == f"{word}\n"

    def killed(self) -> int:
        """The status of a leader that ended, with nothing left below its runner."""
        _, status, alone, _, _ = zygote.STATUS.unpack(self.said(b"X"))
        assert alone
        return int(os.waitstatus_to_exitcode(status))

    def hand(self, command: str) -> None:
        """Send a spec, as the guest does."""
        null = os.open("/dev/null", os.O_RDWR)
        spec = {"argv": ["/bin/sh", "-c", command], "env": {"PATH": "/bin:/usr/bin"}, "cwd": "/", "state_fd": None}
        socket.send_fds(self.socket, [json.dumps({**spec, "announce": False}).encode()], [null] * 4)
        os.close(null)

    def kill(self, leader: int) -> None:
        os.kill(leader, signal.SIGKILL)
        self.said(b"D")


@pytest.fixture
def runner() -> Iterator[Handed]:
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.set_inheritable(True)
    argv = [sys.executable, "-m", "sandbox.guest.commands.zygote", str(theirs.fileno()), json.dumps(SETTING)]
    with theirs, control, subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        control.settimeout(SECONDS)
        handed = Handed(control)
        yield handed
        handed.socket.close()
        control.close()
        assert process.wait(SECONDS) == 0


def test_a_command_begins_with_the_next_leader(runner: Handed, tmp_path: Path) -> None:
    first = runner.leader()
    runner.hand(f"echo once >> {tmp_path}/ran")
    assert runner.killed() == 0
    runner.socket.send(zygote.NEXT)
    second = runner.leader()
    assert second != first
    runner.kill(second)
    runner.hand(f"echo twice >> {tmp_path}/ran")  # before the guest hears of it
    runner.next()
    assert (tmp_path / "ran").read_text() == "once\n"  # it asks before it begins
    runner.socket.send(zygote.GO)
    assert runner.killed() == 0
    assert (tmp_path / "ran").read_text() == "once\ntwice\n"


def test_a_command_that_a_leader_took_into_its_death_is_told_as_killed(runner: Handed, tmp_path: Path) -> None:
    """It was read off the socket by a process that died before it could say so: nobody has it, and nobody may wait for it."""
    runner.kill(runner.leader())
    runner.next()
    runner.socket.send(zygote.GO)
    assert runner.killed() == -signal.SIGKILL
    runner.ran_alone(tmp_path, "next")


def test_what_was_left_for_a_leader_that_died_too_is_not_for_the_next_command(runner: Handed, tmp_path: Path) -> None:
    runner.kill(runner.leader())
    runner.hand(f"echo first >> {tmp_path}/ran")
    runner.kill(runner.next())
    runner.socket.send(zygote.GO)  # to one that does not hear it
    runner.next()
    runner.socket.send(zygote.GO)
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
