"""A command out of time is over: control is back 250 ms after the deadline (a fork storm: 1.5 s), and nothing of it is left.

Every evader is counted from the host's side. A case is tried again where the machine itself was late (see ``observing.within``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sandbox import DockerEnvironment
from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.operations import RunResult

from .observing import MOST_TRIES, eventually, of_commands, within

pytestmark = [pytest.mark.engine, pytest.mark.alone]

SECONDS = 0.5
PROMISED, PROMISED_STORM = 0.25, 1.5


def python(source: str) -> str:
    """Shell text that runs Python source."""
    return "exec python3 -c '\nimport ctypes, os, signal, sys, threading, time\n" + source + "\n'"


EVADERS = {
    "plain": "echo said; sleep 100",
    "ignored signals": "trap '' TERM INT HUP QUIT ALRM; echo said; while :; do sleep 1; done",
    "setsid": "echo said; setsid sleep 100 & setsid -w sleep 100",
    "nohup": "echo said; nohup sleep 100 >/dev/null 2>&1 & wait",
    "double fork": "echo said; ( (setsid sleep 100 &) & ); sleep 100",
    "orphans with closed streams": "echo said; (setsid sleep 100 </dev/null >/dev/null 2>&1 &); exec sleep 100",
    "stopped": "echo said; kill -STOP $$; sleep 100",
    "emptied environment": "echo said; env -i setsid /bin/sleep 100 & exec env -i /bin/sleep 100",
    "another name": python(
        'print("said", flush=True); ctypes.CDLL(None).prctl(15, b"(x) R 1 ", 0, 0, 0); time.sleep(100)'
    ),
    "dead leader thread": python(
        'print("said", flush=True)\nthreading.Thread(target=time.sleep, args=(100,)).start()\nctypes.CDLL(None).syscall(60, 0)'
    ),
    "reaper of its own": python(
        'print("said", flush=True)\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n'
        "if not os.fork():\n  os.setsid()\n  if not os.fork():\n    time.sleep(100)\n  os._exit(0)\ntime.sleep(100)"
    ),
    "mutual respawn": python(
        'print("said", flush=True)\n'
        "def guard(other):\n  while True:\n    try: os.kill(other, 0)\n    except OSError:\n"
        "      me = os.getpid()\n      if not os.fork(): guard(me)\n    time.sleep(0.0005)\n"
        "me = os.getpid()\nother = os.fork()\nguard(other or me)"
    ),
    "runaway chain": "echo said; " + python("while True:\n  if os.fork(): os._exit(0)")[5:] + " & sleep 100",
    "many that spin": "echo said; for i in $(seq 100); do (while :; do :; done) & done; wait",
}


def run_out_of_time(
    sandbox: Callable[[], DockerEnvironment], command: str, promised: float, prepare: Callable[[], None] = lambda: None
) -> Failure[RunResult]:
    """Run a command to its deadline. One that did not begin before it gets another try: its program was read from a disk, say."""
    for _ in range(MOST_TRIES):
        answer: Failure[RunResult] = within(
            SECONDS + promised, lambda: sandbox().run(command, timeout_seconds=SECONDS), prepare
        )[0]
        assert answer.code is ErrorCode.timeout, answer
        assert answer.result is not None
        if began := answer.result.output.startswith("said"):
            break
    assert began, answer
    return answer


@pytest.fixture(autouse=True)
def _next_case_finds_nothing(living: Callable[..., DockerEnvironment]) -> Iterator[None]:
    """A case that fails must not make the others fail, which use the same sandbox."""
    yield
    env = living()
    for left in env.processes().unwrap().commands:
        env.kill(left.id)


@pytest.mark.parametrize("name", EVADERS)
def test_nothing_outlives_its_deadline(env: DockerEnvironment, name: str) -> None:
    bystander = env.run("exec sleep 4321", background=True).unwrap().id
    env.run("export KEPT=yes; cd /tmp").unwrap()

    answer = run_out_of_time(lambda: env, EVADERS[name], PROMISED)

    assert "Nothing it started is left" in answer.error
    assert of_commands(env, without=["sleep 4321"]) == []
    assert env.run("echo $KEPT $PWD").unwrap().output == "yes /tmp\n"
    assert env.logs(bystander).unwrap().running
    env.kill(bystander).unwrap()
    assert of_commands(env) == []


STORMS = {
    "shell": "echo said; f() { f | f & f; }; f",
    "python": python('print("said", flush=True)\nwhile True:\n  try: os.fork()\n  except OSError: pass'),
    "compiled": "echo said; exec /tmp/storm",
}


@pytest.mark.parametrize("name", STORMS)
def test_a_fork_storm_ends_and_names_whom_it_took_along(living: Callable[..., DockerEnvironment], name: str) -> None:
    env, bystander = living(), ""

    def prepare() -> None:
        """A crowded machine may have lost the sandbox of the last try, which did not answer in time."""
        nonlocal env, bystander
        if (env := living()).logs(bystander or "none").ok:
            env.kill(bystander)
        env.write("/tmp/storm.c", "#include <unistd.h>\nint main(void) { for (;;) { if (!fork()) setsid(); } }\n").unwrap()
        env.run("test -x /tmp/storm || gcc -O2 -o /tmp/storm /tmp/storm.c", timeout_seconds=60).unwrap()
        bystander = env.run("exec sleep 4321", background=True).unwrap().id

    answer = run_out_of_time(lambda: env, STORMS[name], PROMISED_STORM, prepare)

    lives = env.logs(bystander).unwrap().running
    named = [n.message for n in answer.notices if n.code == "others_killed"]
    assert lives or any(bystander in message for message in named)
    if lives:
        env.kill(bystander).unwrap()
    assert of_commands(env) == []
    assert env.run("echo usable").unwrap().output == "usable\n"
    assert env.write("after-the-storm", "x").ok
    assert env.search("x", path="after-the-storm").unwrap().matches


def test_deadlines_of_many_commands_at_once(env: DockerEnvironment) -> None:
    took: list[float] = []

    def one() -> None:
        before = time.monotonic()
        answer = env.run("trap '' TERM; sleep 100 & sleep 100", timeout_seconds=1.0, session=None)
        took.append(time.monotonic() - before)
        assert not answer.ok
        assert answer.code is ErrorCode.timeout

    def case() -> None:
        threads = [threading.Thread(target=one) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    within(1.0 + PROMISED + 0.5, case)  # half a second to start twelve commands on two cores
    assert len(took) >= 12
    assert of_commands(env) == []


def test_kill_of_a_background_command_leaves_nothing(env: DockerEnvironment) -> None:
    started = env.run(EVADERS["mutual respawn"], background=True).unwrap()
    assert eventually(lambda: len(of_commands(env)) >= 2, 10)
    killed = env.kill(started.id).unwrap()
    assert killed.killed >= 2
    assert killed.survivors == 0
    assert of_commands(env) == []
    assert env.kill(started.id).unwrap().already_ended


def test_a_timeout_of_what_waits_in_the_queue_starts_with_the_command(env: DockerEnvironment) -> None:
    """It waits for most of its time, and takes more than half of it."""
    goes_on = "/tmp/the first may end"
    first = threading.Thread(target=lambda: env.run(f"until [ -e '{goes_on}' ]; do sleep 0.02; done"))
    first.start()
    assert eventually(lambda: any(each.running and goes_on in each.command for each in env.processes().unwrap().commands))
    go = threading.Timer(2.2, lambda: env.write(goes_on, "").unwrap())
    go.start()
    answer = env.run("sleep 1.6; echo done", timeout_seconds=3)
    go.join()
    first.join()
    assert answer.unwrap().output == "done\n"
