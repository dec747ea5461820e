"""Faults that are injected from outside, each with what must be answered; most of them cost the sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import docker.errors

from sandbox.docker.engine.client import connect
from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode
from tests.integration.observing import eventually

from .subject import Subject, check, in_thread, on_engine

# The end of the pipe is worded within this (docs/reference/sandbox.md).
WORDED_SECONDS = 2.0
CHILD = """
import sys, time
from sandbox import DockerEnvironment
env = DockerEnvironment().start()
env.run("exec sleep 1000", background=True).unwrap()
print(env.container_id, flush=True)
while True: env.run("true")
"""
Fault = Callable[[Subject], bool]


def _engine(s: Subject, call: str, **options: object) -> None:
    getattr(connect().api, call)(s.env.container_id, **options)


def _pause(s: Subject) -> bool:
    """Whether the engine could: freezing what is busy dying fails there now and then ("unable to freeze")."""
    try:
        _engine(s, "pause")
    except docker.errors.APIError as error:
        if "unable to freeze" not in str(error):
            raise
        s.counts.injected("pause failed in the engine")
        return False
    return True


def back(s: Subject) -> None:
    answer = s.env.run("echo back", session=None, timeout_seconds=10)
    s.heard(answer)
    check(answer.unwrap().output == "back\n", answer)


def ended(s: Subject, *reasons: str) -> bool:
    """The sandbox says that it is gone, in time and again; answers that it cannot be used any more."""
    answer = s.timely(WORDED_SECONDS, lambda: s.env.run("echo there", session=None))
    check(answer.code is ErrorCode.sandbox_unavailable, answer)  # type: ignore[union-attr]
    check(any(reason in answer.error for reason in reasons), answer)  # type: ignore[union-attr]
    again = s.env.read("x")
    check(again.code is ErrorCode.sandbox_unavailable, again)  # type: ignore[union-attr]
    return True


def container_killed(s: Subject) -> bool:
    _engine(s, "kill")
    return ended(s, "killed from outside")


def container_removed(s: Subject) -> bool:
    _engine(s, "remove_container", force=True, v=True)
    return ended(s, "killed from outside", "removed")


def pipe_cut(s: Subject) -> bool:
    assert s.env.backend.stream is not None
    s.env.backend.stream.close()
    return ended(s, "pipe", "connection")


def paused(s: Subject) -> bool:
    """Paused for longer than a command may take: said so, and unpaused it goes on where it was."""
    if not _pause(s):
        return False
    try:
        answer = s.timely(0.3 + 2.0, lambda: s.env.run("echo there", session=None, timeout_seconds=0.3))
        check(answer.code is ErrorCode.sandbox_unavailable and "paused" in answer.error, answer)  # type: ignore[union-attr]
    finally:
        _engine(s, "unpause")
    back(s)
    return False


def paused_shortly(s: Subject) -> bool:
    """Paused and unpaused within the deadline: nobody notices."""
    if not _pause(s):
        return False
    time.sleep(0.3)
    _engine(s, "unpause")
    back(s)
    return False


def paused_while_a_command_runs(s: Subject) -> bool:
    """The caller of the command gets its answer when it can have ended."""
    word, answers = f"w{s.rng.randrange(10**6)}", list[Envelope[Any]]()
    command = f"sleep 0.4; echo {word}"
    thread = in_thread(lambda: answers.append(s.env.run(command, session=None, timeout_seconds=20)))
    time.sleep(0.1)
    if _pause(s):
        time.sleep(s.rng.choice((0.2, 1.0)))
        _engine(s, "unpause")
    thread.join(30)
    check(len(answers) == 1 and answers[0].unwrap().output == f"{word}\n", answers)
    back(s)
    return False


def paused_by_the_host(s: Subject) -> bool:
    """env.pause() for longer than the command under way may take: it is refused to do more meanwhile, and nothing was lost."""
    answers: list[Envelope[Any]] = []
    thread = in_thread(lambda: answers.append(s.env.run("sleep 0.4; echo over", session=None, timeout_seconds=1.5)))
    time.sleep(0.1)
    s.env.pause()
    try:
        refused = s.timely(0.0, lambda: s.env.read("x"))
        check(refused.code is ErrorCode.sandbox_paused, refused)  # type: ignore[union-attr]
        time.sleep(2.0)
    finally:
        s.env.resume()
    thread.join(30)
    check(len(answers) == 1 and answers[0].unwrap().output == "over\n", answers)
    back(s)
    s.census()
    return False


def orchestrator_killed(s: Subject) -> bool:
    """Another orchestrator dies by SIGKILL in the middle of an action: its sandbox goes with it, this one does not."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        ident = child.stdout.readline().strip()
        check(bool(ident), "the child did not start a sandbox")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()

    if not eventually(lambda: ident not in on_engine()[0], 10.0):
        s.counts.add("orphans", note=f"the container {ident[:12]} outlives its orchestrator")
    check(
        s.env.run("echo there", session=None).unwrap().output == "there\n", "the other orchestrator's sandbox suffered"
    )
    return False


# Of any sandbox, and of one that is not kept.
FAULTS: dict[Fault, int] = {
    container_killed: 1, container_removed: 1, paused: 2, paused_shortly: 2, orchestrator_killed: 2,
    paused_while_a_command_runs: 3, paused_by_the_host: 3,
}  # fmt: skip
OF_OTHERS: dict[Fault, int] = {pipe_cut: 1}
