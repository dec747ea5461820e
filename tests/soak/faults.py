"""Faults that are injected from outside, each with what must be answered; most of them cost the sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import docker.errors

from sandbox.docker.engine import connect
from sandbox.errors import ErrorCode
from tests.integration.observing import eventually

from .subject import Subject, check

# The end of the pipe is worded within this (docs/sandbox.md).
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
    client = connect()
    try:
        getattr(client.api, call)(s.env.container_id, **options)
    finally:
        client.close()


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


def _back(s: Subject) -> None:
    answer = s.env.run("echo back", session=None, timeout_seconds=10)
    s.heard(answer)
    check(answer.unwrap().output == "back\n", answer)


def _ended(s: Subject, *reasons: str) -> bool:
    """The sandbox says that it is gone, in time and again; answers that it cannot be used any more."""
    answer = s.timely(WORDED_SECONDS, lambda: s.env.run("echo there", session=None))
    check(answer.code is ErrorCode.sandbox_unavailable, answer)  # type: ignore[union-attr]
    check(any(reason in answer.error for reason in reasons), answer)  # type: ignore[union-attr]
    again = s.env.read("x")
    check(again.code is ErrorCode.sandbox_unavailable, again)  # type: ignore[union-attr]
    return True


def container_killed(s: Subject) -> bool:
    _engine(s, "kill")
    return _ended(s, "killed from outside")


def container_removed(s: Subject) -> bool:
    _engine(s, "remove_container", force=True, v=True)
    return _ended(s, "killed from outside", "removed")


def pipe_cut(s: Subject) -> bool:
    assert s.env._stream is not None
    s.env._stream.close()
    return _ended(s, "pipe", "connection")


def paused(s: Subject) -> bool:
    """Paused for longer than a command may take: said so, and unpaused it goes on where it was."""
    if not _pause(s):
        return False
    try:
        answer = s.timely(0.3 + 2.0, lambda: s.env.run("echo there", session=None, timeout_seconds=0.3))
        check(answer.code is ErrorCode.sandbox_unavailable and "paused" in answer.error, answer)  # type: ignore[union-attr]
    finally:
        _engine(s, "unpause")
    _back(s)
    return False


def paused_shortly(s: Subject) -> bool:
    """Paused and unpaused within the deadline: nobody notices."""
    if not _pause(s):
        return False
    time.sleep(0.3)
    _engine(s, "unpause")
    _back(s)
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

    def gone() -> bool:
        client = connect()
        try:
            return ident not in {c["Id"] for c in client.api.containers(all=True)}
        finally:
            client.close()

    if not eventually(gone, 10.0):
        s.counts.add("orphans", note=f"the container {ident[:12]} outlives its orchestrator")
    check(
        s.env.run("echo there", session=None).unwrap().output == "there\n", "the other orchestrator's sandbox suffered"
    )
    return False


FAULTS: dict[Fault, int] = {
    container_killed: 3, container_removed: 3, pipe_cut: 3, paused: 2, paused_shortly: 2, orchestrator_killed: 2,
}  # fmt: skip
