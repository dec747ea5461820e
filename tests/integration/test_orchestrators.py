"""The orchestrator is killed, or stopped and continued: nothing of it stays, and nothing that was done is lost or told wrongly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .observing import Heartbeat, eventually, in_time
from .own_engine import IN_A_PROCESS, ROOT, OwnEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(90)]

BEGIN = (
    IN_A_PROCESS
    + """
import sys, time, json
limits = Limits(memory_bytes=256 << 20)
def say(answer):
    print(json.dumps(answer.to_dict()["result"]["output"] if answer.ok else [answer.code.value, answer.error]), flush=True)
env = DockerEnvironment(IMAGE, limits=limits).start()
env.write("written", "acknowledged").unwrap()
env.run("sleep 1000 & true").unwrap()
print("ready", flush=True)
"""
)
RUNS = (
    BEGIN
    + """
say(env.run("sleep 0.5; echo done > done; echo told", timeout_seconds=1))
say(env.run("cat written done"))
env.close()
"""
)
LONG = RUNS.replace("sleep 0.5", "sleep 30").replace("timeout_seconds=1", "timeout_seconds=60")
IDLES = (
    BEGIN
    + """
sys.stdin.readline()
say(env.run("cat written"))
env.close()
"""
)


def leased(source: str) -> str:
    """The same with a lease of two seconds."""
    return source.replace("256 << 20)", "256 << 20, lease_seconds=2.0)")


@contextmanager
def orchestrator(source: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_killed(engine: OwnEngine) -> None:
    with orchestrator(LONG) as child:
        time.sleep(0.2)
        assert len(engine.shims()) == 1
        child.kill()
        at = time.monotonic()
        with Heartbeat() as heart:
            assert engine.nothing_is_left(30.0)
        took = time.monotonic() - at
        assert in_time(took, 3.0, heart), f"took {took:.2f} s"


def test_killed_while_it_starts(engine: OwnEngine) -> None:
    """At any moment: whatever of the start was carried out is gone at the latest when the next sandbox starts."""
    for delay in (0.35, 0.5, 0.6, 0.7, 0.8):
        early = subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.DEVNULL, cwd=ROOT)
        time.sleep(delay)
        early.kill()
        early.wait()
    with orchestrator(IDLES) as child:  # a process of its own: sweeps at its start
        go_on(child)
        assert said(child) == '"acknowledged"\n'
    assert engine.nothing_is_left()


def test_stopped_past_the_deadline_of_its_command(engine: OwnEngine) -> None:
    """The guest was on time. What it said is in the pipe, and is the answer: not that it was silent."""
    patient = RUNS.replace("timeout_seconds=1", "timeout_seconds=4")
    patient = patient.replace('say(env.run("sleep', 'sys.stdin.readline()\nsay(env.run("sleep')
    with ExitStack() as stack:
        children = [stack.enter_context(orchestrator(patient)) for _ in range(4)]
        for child in children:
            go_on(child)
        time.sleep(0.2)
        for child in children:
            child.send_signal(signal.SIGSTOP)
        time.sleep(4.0 + 2.0)  # the timeout and the grace
        for child, more in zip(children, (0.1, 0.2, 0.7, 1.0), strict=True):
            time.sleep(more)
            child.send_signal(signal.SIGCONT)
            assert said(child) == '"told\\n"\n'
            assert said(child) == '"acknowledgeddone\\n"\n'
    assert engine.nothing_is_left(30.0)


def test_stopped_past_the_lease(engine: OwnEngine) -> None:
    """The sandbox ends by itself, also while it is stopped; continued, it is told why."""
    with orchestrator(leased(IDLES)) as child:
        child.send_signal(signal.SIGSTOP)
        at = time.monotonic()
        assert eventually(lambda: not engine.shims(), 30.0)
        print(f"seconds: {time.monotonic() - at:.2f}")
        assert eventually(lambda: engine.containers() == [])
        child.send_signal(signal.SIGCONT)
        go_on(child)
        answer = said(child)
        assert '"sandbox_unavailable", "The sandbox heard nothing from this process for 2 seconds' in answer, answer
    assert engine.nothing_is_left()


def test_stopped_in_the_middle_of_a_run_past_the_lease(engine: OwnEngine) -> None:
    with orchestrator(leased(LONG)) as child:
        child.send_signal(signal.SIGSTOP)
        assert eventually(lambda: not engine.shims(), 30.0)
        assert eventually(lambda: engine.containers() == [])
        child.send_signal(signal.SIGCONT)
        answer = said(child)
        assert '"sandbox_unavailable", "The sandbox heard nothing from this process for 2 seconds' in answer, answer
    assert engine.nothing_is_left()
