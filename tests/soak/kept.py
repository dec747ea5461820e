"""Kept sandboxes whose orchestrator goes, or is replaced: nothing in them is lost, and nothing is done twice."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from sandbox import DockerEnvironment
from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode, SandboxError
from tests.integration.observing import eventually

from .faults import Fault, back
from .state import same_files
from .subject import Remains, Subject, check, in_thread, on_engine

CHILD = """
import sys, time
from sandbox import DockerEnvironment, Limits
env = DockerEnvironment(limits=Limits(memory_bytes=256 << 20), keep=True, keep_seconds=120.0).start()
env.run("export MARK=left; cd /tmp").unwrap()
late = env.run("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done", background=True).unwrap().id
print(env.container_id, late, flush=True)
env.run(sys.argv[1], request_id="once", session=None, timeout_seconds=30)
time.sleep(60)
"""
COMMAND = "echo x >> /workspace/ran; sleep 1; cat /workspace/ran"


def _all_there(s: Subject) -> None:
    for ident in s.sleeping:
        check(s.env.logs(ident).unwrap().running, f"{ident} does not run any more")
    for name, value in s.variables.items():
        check(s.env.run(f"echo ${name}").unwrap().output == f"{value}\n", f"{name} is not {value} any more")
    same_files(s.env, s.files)
    s.census()


def orchestrator_dropped(s: Subject) -> bool:
    """close() in the middle of a request; the next one asks again by its id, and gets the answer of the only run there was."""
    name, answers, ident = s.new_name(), list[Envelope[Any]](), f"id{s.rng.randrange(10**12)}"
    command = f"mkdir -p $(dirname {name}); echo x >> {name}; sleep 0.4; cat {name}"
    options: dict[str, Any] = {"session": None, "request_id": ident, "timeout_seconds": 20}
    env = s.env
    thread = in_thread(lambda: answers.append(env.run(command, **options)))
    time.sleep(s.rng.choice((0.05, 0.2)))
    env.close()
    thread.join(10)
    check(len(answers) == 1, "the caller of an environment that was closed waits on")
    s.becomes(s.kind.attach(env.container_id))
    answer = s.env.run(command, **options)
    s.files[name] = b"x\n"
    check(answer.unwrap().output == "x\n", answer)
    _all_there(s)
    return False


def taken_over(s: Subject) -> bool:
    """The last owner is told so, and can do nothing to it any more."""
    before = s.env
    try:
        s.kind.attach(before.container_id)
    except SandboxError as error:
        check(error.code is ErrorCode.sandbox_owned, error)
    else:
        check(False, "attached to a sandbox that is owned")
    s.becomes(s.kind.attach(before.container_id, take_over=True))
    told = before.run("echo mine", session=None)
    check(told.code is ErrorCode.sandbox_unavailable and "another orchestrator" in told.error, told)  # type: ignore[union-attr]
    before.remove()
    _all_there(s)
    return False


def orchestrator_of_a_kept_one_killed(s: Subject) -> bool:
    """By SIGKILL, in the middle of a request: the same as when it is dropped, for a sandbox of another process."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, COMMAND], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        ident, _, late = child.stdout.readline().strip().partition(" ")
        check(bool(late), "the child did not start a sandbox")
        time.sleep(s.rng.choice((0.1, 0.3, 0.8)))
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    env = DockerEnvironment.attach(ident)
    try:
        s.everything.add(Remains(env))
        answer = env.run(COMMAND, request_id="once", session=None, timeout_seconds=30)
        check(answer.unwrap().output == "x\n", answer)
        check(env.run("echo $MARK $PWD").unwrap().output == "left /tmp\n", "the session was lost")
        logged = "".join(chunk.text for chunk in env.follow(late))
        check(logged == "".join(f"line {n}\n" for n in range(1, 7)), logged)
    finally:
        env.remove()
    if not eventually(lambda: ident not in on_engine()[0], 10.0):
        s.counts.add("orphans", note=f"the container {ident[:12]} was removed and is there")
    back(s)
    return False


ANYWHERE: dict[Fault, int] = {orchestrator_of_a_kept_one_killed: 2}
OF_KEPT: dict[Fault, int] = {orchestrator_dropped: 6, taken_over: 4}
