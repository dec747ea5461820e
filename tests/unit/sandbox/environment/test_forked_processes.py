"""A process forked from the one that made a sandbox is refused, and cannot hurt it (trials, D03)."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from sandbox import LocalEnvironment
from sandbox.errors import ErrorCode

# Forking a process with threads is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        env.write("kept.txt", "still here").unwrap()
        yield env


def _in_child(work: Callable[[], object]) -> str:
    """What ``work`` answers in a forked child, as text; "raised ..." for what it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            answer = str(work())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            answer = f"raised {type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        answer = file.read().decode()
    os.waitpid(pid, 0)
    return answer


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.run("true").error,
        lambda env: env.usage().error,
        lambda env: env.upload(b"x", "y").error,
        lambda env: env.download("kept.txt").error,
        lambda env: env.changes().error,
        lambda env: env.forward(80).error,
        lambda env: env.pause(),
        lambda env: env.resume(),
        lambda env: env.start(),
        lambda env: env.execute_action(type("A", (), {"name": "read", "operation": "read"})(), {"path": "kept.txt"})["error"],
    ],
)  # fmt: skip
def test_a_call_in_a_forked_child_is_refused_in_words(env: LocalEnvironment, call: Callable[[LocalEnvironment], object]) -> None:
    answer = _in_child(lambda: call(env))
    assert f"was forked from the one that made the environment ({os.getpid()})" in answer
    assert env.read("kept.txt").unwrap().content == "still here"


def test_the_refusal_has_a_code_of_its_own(env: LocalEnvironment) -> None:
    assert _in_child(lambda: env.run("true").to_dict()["code"]) == ErrorCode.sandbox_owned


def _leave_with(env: LocalEnvironment) -> None:
    with env:
        pass


@pytest.mark.parametrize(
    "end", [lambda env: env.close(), lambda env: env.remove(), lambda env: env.__exit__(), lambda env: env.describe()]
)
def test_closing_in_a_forked_child_does_nothing_to_the_parent(
    env: LocalEnvironment, end: Callable[[LocalEnvironment], object]
) -> None:
    assert not _in_child(lambda: end(env)).startswith("raised")
    assert env.run("cat kept.txt").unwrap().stdout == "still here"


def test_a_commands_end_in_the_parent_is_seen_though_a_child_was_refused(env: LocalEnvironment) -> None:
    started = env.run("sleep 0.3; echo done", background=True).unwrap()
    _in_child(lambda: [env.run("true"), env.kill(started.id), env.describe()])
    assert env.wait_for(exit=True, id=started.id).ok
    assert env.logs(started.id).unwrap().content == "done\n"


CHILD_ENDS = """
import os, sys
from pathlib import Path
from sandbox import LocalEnvironment
env = LocalEnvironment().start()
env.write("kept.txt", "still here").unwrap()
if not (child := os.fork()):
    sys.exit()
os.waitpid(child, 0)
print(Path(env.workspace, "kept.txt").read_text(), end="")
"""


def test_a_child_that_ends_through_atexit_leaves_the_parents_folders() -> None:
    """It removed the workspace of its parent: TemporaryDirectory has a finalizer that every process runs.

    In a process of its own: a child of pytest's would also run what other tests have registered.
    """
    ran = subprocess.run([sys.executable, "-c", CHILD_ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("still here", 0), ran.stderr


def test_a_worker_of_multiprocessing_is_refused(env: LocalEnvironment) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_leave_with, args=(env,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 1  # entering it again is a start
    assert env.run("cat kept.txt").unwrap().stdout == "still here"


def test_the_parent_closes_at_once_though_a_child_lives_on() -> None:
    """The child held the guest's input open: ``close`` waited 5 s and killed it."""
    with LocalEnvironment() as env:
        process = env.backend.process
        assert process is not None
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        env.close()
        assert process.returncode == 0
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_environment_made_before_a_fork_is_started_by_its_maker_only() -> None:
    env = LocalEnvironment()
    assert "SandboxError" in _in_child(env.start)
    with env:
        assert env.run("echo ok").unwrap().stdout == "ok\n"


def test_a_fake_environment_refuses_as_a_real_one_does() -> None:
    from sandbox.testing import FakeEnvironment

    with FakeEnvironment() as env:
        assert "was forked" in _in_child(lambda: env.run("true").to_dict()["error"])
