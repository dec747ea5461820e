"""Waits and listings in a sandbox that works against them: they end in time, say what is so, and the guest goes on."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import DockerEnvironment
from sandbox.errors import ErrorCode

pytestmark = pytest.mark.engine

# Kills whatever matches lines for a wait, as soon as it is seen.
HUNTER = """
import os, signal
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"interaction.matcher_program" in open(f"/proc/{pid}/cmdline", "rb").read() and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
"""
# Sockets that listen under names of several lines, each a forged line of the kernel's table, and many more that do not listen.
LIARS = """
import socket, time
held = []
for n in range(60):
    held.append(s := socket.socket(socket.AF_UNIX))
    s.bind(f"/tmp/liar{n}\\n0000000000000000: 00000002 00000000 00010000 0001 01 {n + 1} forged\\n")
    s.listen()
try:
    while True:
        held.append(socket.socket())
        held.append(socket.socketpair())
except OSError:
    pass
print("up", flush=True)
time.sleep(600)
"""
CROWD = """
import os, time, ctypes
for n in range(150):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b") R 1 (\\n\\xff")
        time.sleep(600)
        os._exit(0)
print("up", flush=True)
time.sleep(600)
"""


def test_a_wait_whose_process_is_killed(env: DockerEnvironment) -> None:
    """Threat: a command kills or stops what looks at lines for a wait, which then never answers or lies."""
    hunter = env.run(argv=["python3", "-c", HUNTER], background=True).unwrap().id
    talker = env.run("echo begun; sleep 600", background=True).unwrap().id
    began = time.monotonic()
    answer = env.wait_for(id=talker, log="beg.n", timeout_seconds=60)
    assert time.monotonic() - began < 30
    if not answer.ok:  # the hunter may be too late
        assert answer.code is ErrorCode.io_error, answer.to_text()
        assert "was ended" in answer.error
    env.kill(hunter).unwrap()
    assert env.wait_for(id=talker, log="beg.n").unwrap().line == "begun"
    env.kill(talker).unwrap()


def test_what_is_waited_for_does_not_hold_up_the_guest(env: DockerEnvironment) -> None:
    """Threat: expressions without end, as many as there may be, starve the guest or leave processes behind."""
    talker = env.run(f"echo {'a' * 40}; sleep 600", background=True).unwrap().id
    before = env.processes().unwrap().pids
    for _ in range(8):
        answer = env.wait_for(id=talker, log="(a+a+)+b", timeout_seconds=0.3)
        assert not answer.ok
        assert answer.code is ErrorCode.not_ready
        assert answer.duration_ms < 30_000
    assert env.run("echo on", session=None).unwrap().output == "on\n"
    deadline = time.monotonic() + 120
    while "interaction.matcher_program" in env.run("cat /proc/[0-9]*/cmdline", session=None).unwrap().output:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    now = env.processes().unwrap().pids
    assert before is not None
    assert now is not None
    assert now < before + 20  # threads of the guest among them
    env.kill(talker).unwrap()


def test_many_expressions_share_few_processes(env: DockerEnvironment) -> None:
    """Threat: a wait for an expression is a process, so that hundreds of waits take the sandbox's processes and memory."""
    program = f"echo {'a' * 40}; until [ -e go ]; do sleep 0.1; done; echo line 7; sleep 600"
    talker = env.run(program, background=True).unwrap().id
    with ThreadPoolExecutor(122) as threads:
        bombs = [threads.submit(env.wait_for, id=talker, log="(a+a+)+b", timeout_seconds=100) for _ in range(20)]
        waits = [threads.submit(env.wait_for, id=talker, log=r"line (\d)", timeout_seconds=100) for _ in range(100)]
        deadline, seen = time.monotonic() + 60, 0
        while not all(bomb.done() for bomb in bombs):
            assert time.monotonic() < deadline
            # The runner of each is another process, with another command line.
            seen = max(seen, env.run("cat /proc/[0-9]*/cmdline", session=None).unwrap().output.count("interaction.matcher_program"))
            time.sleep(0.3)
        assert 0 < seen <= 16
        for bomb in bombs:
            answer = bomb.result()
            assert not answer.ok
            assert answer.code is ErrorCode.invalid_pattern, answer.to_text()
        env.write("go", "").unwrap()
        for wait in waits:
            assert wait.result().unwrap().groups == ("7",)
    deadline = time.monotonic() + 120
    while "interaction.matcher_program" in env.run("cat /proc/[0-9]*/cmdline", session=None).unwrap().output:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    env.kill(talker).unwrap()


def test_a_listing_of_liars_is_bounded(env: DockerEnvironment) -> None:
    """Threat: names, sockets and processes without number make a listing endless, or show what is another's."""
    liar = env.run(argv=["python3", "-c", LIARS], background=True).unwrap().id
    crowd = env.run(argv=["python3", "-c", CROWD], background=True).unwrap().id
    for ident in (liar, crowd):
        env.wait_for(id=ident, log="up").unwrap()
    answer = env.processes()
    result = answer.unwrap()
    assert answer.duration_ms < 10_000
    assert {c.id: c.process_count for c in result.commands if c.running} == {liar: 1, crowd: 151}
    assert len(json.dumps(answer.to_dict())) < 200_000
    assert all(char.isprintable() for line in answer.to_text().splitlines() for char in line)
    (process,) = next(c for c in result.commands if c.id == liar).processes
    assert 0 < len(process.listens) <= 8
    assert not env.wait_for(port=22, timeout_seconds=0.2).ok
    for ident in (liar, crowd):
        env.kill(ident).unwrap()
