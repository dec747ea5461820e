"""Killing everything below a sub-reaper, whatever the processes do against it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.guest.commands import killer
from sandbox.guest.commands.killer import kill_below, wait_until_gone
from sandbox.guest.watch.procfs import find_descendants, read_parents

ROOT = str(Path(__file__).parents[3])
# A stand-in for a runner: sub-reaper of what it starts, reaps, says when its command has begun.
RUNNER = """
import os, signal, subprocess, sys
from sandbox.guest import kernel
kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""
READY = "import os, signal, sys, time, threading\ndef ready(): os.write(1, b'+')\n"
TREES = {
    "plain": "ready(); time.sleep(600)",
    "ignores signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; ready(); time.sleep(600)",
    "children": "[os.fork() for _ in range(3)]; ready() if os.getppid() else 0; time.sleep(600)",
    "setsid": "os.fork() and os._exit(0); os.setsid(); ready(); time.sleep(600)",
    "double fork": "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); os.chdir('/'); ready(); time.sleep(600)",
    "stopped": "p = os.fork()\nif p: os.kill(p, signal.SIGSTOP); ready()\ntime.sleep(600)",
    "stops itself": "ready(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)",
    "own sub-reaper": (
        "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "if os.fork() == 0:\n    os.fork() and os._exit(0)\n    os.setsid(); ready()\ntime.sleep(600)"
    ),
    "dead leader thread": (
        "import ctypes\ndef go():\n    time.sleep(0.1); ready(); time.sleep(600)\n"
        "threading.Thread(target=go).start(); ctypes.CDLL(None).syscall(60, 0)"
    ),
    "renamed": "import ctypes; ctypes.CDLL(None).prctl(15, b') X 1 (', 0, 0, 0); ready(); time.sleep(600)",
    "respawning": (
        "import subprocess\n"
        "code = 'import subprocess, sys, time; time.sleep(0.05); '\\\n"
        "    'subprocess.Popen([sys.executable, \"-c\", sys.argv[1], sys.argv[1]], start_new_session=True)'\n"
        "subprocess.Popen([sys.executable, '-S', '-c', code, code]); ready(); time.sleep(600)"
    ),
}


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    """Starts a tree and answers the pid of its runner."""
    runners: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, READY + code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        runners.append(runner)
        assert runner.stdout is not None
        assert runner.stdout.read(1) == b"+"
        return runner.pid

    yield start
    for runner in runners:
        for pid in find_descendants(runner.pid):
            os.kill(pid, signal.SIGKILL)
        runner.kill()
        runner.wait()
        assert runner.stdout is not None
        runner.stdout.close()


@pytest.mark.parametrize("tree", TREES)
def test_nothing_survives(started: Callable[[str], int], tree: str) -> None:
    root = started(TREES[tree])
    before = find_descendants(root)
    assert before
    killed, survivors = kill_below(root, seconds=60)
    assert survivors == set()
    assert killed
    time.sleep(0.05)
    assert find_descendants(root) == []
    assert all(pid not in read_parents() for pid in before)


def test_the_root_and_its_siblings_live_on(started: Callable[[str], int]) -> None:
    root, other = started(TREES["plain"]), started(TREES["children"])
    theirs = set(find_descendants(other))
    killed, _ = kill_below(root, seconds=60)
    assert not killed & (theirs | {root, other, os.getpid()})
    assert theirs <= set(find_descendants(other))
    assert root in read_parents()


def test_parents_come_before_their_children(started: Callable[[str], int]) -> None:
    root = started("os.fork() or os.fork() or os.fork(); ready(); time.sleep(600)")
    deadline = time.monotonic() + 60
    while len(order := find_descendants(root)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    table = read_parents()
    assert len(order) == 4
    assert all(table[pid] == root or order.index(table[pid]) < order.index(pid) for pid in order)


def test_it_gives_up_in_time_and_says_who_is_left(
    started: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = started(TREES["plain"])
    before = set(find_descendants(root))
    monkeypatch.setattr(os, "kill", lambda pid, number: None)  # as where the kill is not allowed
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 0.03

    monkeypatch.setattr(killer, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    _, survivors = kill_below(root, seconds=0.1)
    monkeypatch.undo()
    assert survivors == before
    assert now == [pytest.approx(0.12)], "it gives up at the first look past its time"


def test_who_is_slow_to_die_is_waited_for(started: Callable[[str], int]) -> None:
    root = started(TREES["plain"])
    before = set(find_descendants(root))
    for pid in before:
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    assert wait_until_gone(root, before, 60) == set()


def test_who_does_not_die_is_named_in_time(started: Callable[[str], int]) -> None:
    root = started(TREES["plain"])
    before = set(find_descendants(root))
    began = time.monotonic()
    assert wait_until_gone(root, before, 0.2) == before
    assert 0.2 <= time.monotonic() - began < 60


def test_who_forks_on_is_not_waited_for(started: Callable[[str], int]) -> None:
    root = started(TREES["plain"])
    began = time.monotonic()
    assert wait_until_gone(root, (), 600) is None
    assert time.monotonic() - began < 60


def test_nothing_is_below_a_pid_that_is_not_there() -> None:
    assert kill_below(2**22 + 1) == (set(), set())
