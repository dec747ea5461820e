"""What /proc says of processes: names as odd as they may be, circles, real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sandbox.guest.commands import sessions
from sandbox.guest.interaction.process_list import read_command_line
from sandbox.guest.watch import procfs

LINE = b"42 (%s) %s 7 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 123456 10000000 256 18446744073709551615 1 1 0"


@pytest.mark.parametrize("name", [b"sh", b"a b", b") R 1 (", b"x\ny", b"\xff\xfe", b""])
def test_a_line_whatever_the_name(name: bytes) -> None:
    stat = procfs.Stat(LINE % (name, b"S"))
    assert (stat.name, stat.state, stat.parent, stat.ticks, stat.threads, stat.started) == (
        name.decode("utf-8", "replace"),
        "sleeping",
        7,
        300,
        3,
        123456,
    )
    assert stat.memory == 256 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("line", [b"", b"42", b"42 (x", b"42 (x) S", b"42 (x) S y z"])
def test_what_is_no_line(line: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        procfs.Stat(line)


def test_states() -> None:
    assert procfs.Stat(LINE % (b"x", b"Z")).state == "zombie"
    assert procfs.Stat(LINE % (b"x", b"?")).state == "other"


def test_trees_and_circles() -> None:
    children = {1: [2, 3], 2: [4], 4: [5, 2], 3: [6]}
    assert procfs.list_below(1, children) == [2, 3, 4, 6, 5]
    assert procfs.list_below(9, children) == []
    assert procfs.sort_depth_first(1, [2, 3, 4, 5, 6], children) == [2, 4, 5, 3, 6]
    assert procfs.sort_depth_first(1, [3, 2], children) == [2, 3]
    deep = {n: [n + 1] for n in range(1, 5000)}
    assert len(procfs.sort_depth_first(1, procfs.list_below(1, deep), deep)) == 4999


def test_a_real_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass", "an argument"])
    try:
        before = after = procfs.read_all_stats()[child.pid]
        deadline = time.monotonic() + 60
        while after.ticks == before.ticks and time.monotonic() < deadline:
            time.sleep(0.1)
            after = procfs.read_all_stats()[child.pid]
        assert after.parent == os.getpid()
        assert after.started == before.started
        assert after.ticks > before.ticks
        assert 0 <= after.age < 60
        assert read_command_line(child.pid).endswith("while True: pass an argument")
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert procfs.read_all_stats()[child.pid].state == "stopped"
    finally:
        child.kill()
        child.wait()
    assert read_command_line(child.pid) == ""


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_the_shell_around_a_command_is_left_out(shell: str) -> None:
    command = "exec 0<&-; sleep 600; echo 'exit $__gamebox_status'"
    argv = sessions.build_shell_argv(shell, 9, command, ["f() { :; }"])
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None and not read_command_line(child.pid):  # it is just being made
            time.sleep(0.001)
        assert read_command_line(child.pid) == f"{os.path.basename(shell)} -c {command}"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
