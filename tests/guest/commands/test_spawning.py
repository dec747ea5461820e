"""Starting commands: what waits for a process, and what is kept ready."""

from __future__ import annotations

import errno
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox import CancelToken, LocalEnvironment
from sandbox.errors import ErrorCode
from sandbox.guest.commands.command import Command
from sandbox.guest.commands.launch.spawner import MOST_SPARES, Spawner
from sandbox.guest.commands.run import run
from sandbox.guest.watch.procfs import find_descendants, read_parents
from tests.guest.calls import place_at, running_processes
from tests.integration.observing import eventually


def test_many_commands_that_end_at_once_leave_no_crowd_of_spares() -> None:
    with LocalEnvironment() as env:
        ids = [env.run("sleep 100", background=True).unwrap().id for _ in range(20)]
        killers = [threading.Thread(target=env.kill, args=(ident,)) for ident in ids]
        for thread in killers:
            thread.start()
        for thread in killers:
            thread.join()
        assert env.backend.process is not None
        guest = env.backend.process.pid
        most = 1 + 2 * (MOST_SPARES + 1)  # the launcher; a runner and its leader each
        assert eventually(lambda: len(find_descendants(guest)) <= most, 120)
        assert env.run("echo alive").unwrap().output == "alive\n"


@contextmanager
def without_processes(env: LocalEnvironment) -> Iterator[None]:
    """No further command gets a process, until the end of the block."""
    assert env.backend.process is not None
    guest = env.backend.process.pid
    launcher = next(pid for pid, parent in read_parents().items() if parent == guest)
    os.kill(launcher, signal.SIGSTOP)
    try:
        for _ in range(MOST_SPARES + 1):
            env.run("exec sleep 100", session=None, wait_seconds=0.05).unwrap()
        yield
    finally:
        os.kill(launcher, signal.SIGCONT)


def test_a_command_that_was_not_started_in_time_is_no_sign_of_too_many_processes() -> None:
    """Where the machine is slow and not full, a deadline is a timeout and a cancel a cancel."""
    with LocalEnvironment() as env:
        with without_processes(env):
            late = env.run("true", session=None, timeout_seconds=0.2)
            assert late.code is ErrorCode.timeout  # type: ignore[union-attr]
            assert late.result is not None
            assert (late.result.exit_code, late.result.signal) == (None, None)
            token = CancelToken()
            timer = threading.Timer(0.1, token.cancel)
            timer.start()
            cancelled = env.run("true", session=None, cancel=token)
            timer.join()
            assert cancelled.code is ErrorCode.cancelled  # type: ignore[union-attr]
        assert env.run("echo on", session=None).unwrap().output == "on\n"


def test_a_command_whose_output_cannot_be_watched_does_not_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started before the guest watches its pipes: without that it would have no deadline."""

    def out_of_memory(self: Command, fd: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(Command, "_watch", out_of_memory)
    replies: queue.Queue[dict[str, Any]] = queue.Queue()
    args = {"command": "sleep 100", "session": "default", "timeout_seconds": 60.0, "keep_output_bytes": 1000}
    with running_processes(place_at(tmp_path, sessions=1, concurrent_actions=1)) as running:
        processes = running.processes

        def start() -> None:
            run(processes, args, lambda fields, _: replies.put(fields), lambda _: None)

        running._reactor.hand_over(start)
        assert replies.get(timeout=60)["fault"].code == "io_error"
        assert eventually(lambda: all(command.tree_empty for command in processes.commands.values()))
        assert eventually(lambda: not processes.sessions.own["default"].busy)


def test_a_command_that_is_killed_while_it_waits_for_a_process_never_begins() -> None:
    with LocalEnvironment() as env:
        with without_processes(env):
            waits, other = (env.run("echo on >> said", session=None, wait_seconds=0.05).unwrap().id for _ in range(2))
            assert env.kill(waits, signal="SIGWINCH").unwrap().signalled == 0
            for ident, how in ((waits, {}), (other, {"signal": "SIGTERM"})):
                killed = env.kill(ident, **how).unwrap()
                assert (killed.already_ended, killed.killed) == (False, 0)
                assert killed.to_text() == f"[{ident} was killed: 0 processes]"
                assert env.kill(ident).unwrap().already_ended
                assert "killed by SIGKILL: killed" in env.logs(ident).unwrap().to_text()
        for _ in range(MOST_SPARES + 2):
            assert env.run("echo alive").unwrap().output == "alive\n"
        assert env.read("said").code is ErrorCode.path_not_found  # type: ignore[union-attr]
        assert not any(command.running for command in env.processes().unwrap().commands if command.id in (waits, other))


def test_a_kill_is_one_also_where_the_sandbox_may_have_no_further_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spawner, "starved", True)
    monkeypatch.setattr(Spawner, "_need", lambda self, use: self._waiting.append(use))
    replies: queue.Queue[dict[str, Any]] = queue.Queue()
    args = {"command": "true", "session": "default", "timeout_seconds": 60.0, "keep_output_bytes": 1000}
    with running_processes(place_at(tmp_path, sessions=1, concurrent_actions=1)) as running:
        processes = running.processes

        def start() -> None:
            run(processes, args, lambda fields, _: replies.put(fields), lambda _: None)
            (ident,) = processes.commands
            processes.kill({"id": ident}, lambda fields, _: replies.put(fields))
            processes.kill({"id": ident}, lambda fields, _: replies.put(fields))

        running._reactor.hand_over(start)
        answer, killed, again = (replies.get(timeout=60) for _ in range(3))
        assert (answer["result"]["exit_code"], answer["result"]["signal"]) == (None, "SIGKILL")
        assert (killed["result"]["killed"], again["result"]["already_ended"]) == (0, True)


def waits_in(pid: int) -> str:
    """The function of the kernel in which a process sleeps; "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


@contextmanager
def taken(env: LocalEnvironment) -> Iterator[None]:
    """All processes that wait for a command are killed, and nobody has noticed yet: until the end of the block."""
    assert env.backend.process is not None
    launcher = next(pid for pid, parent in read_parents().items() if parent == env.backend.process.pid)

    def waiting() -> tuple[list[int], list[int]] | None:
        """The runners and their leaders, once there is a spare beside the one that was used, and all of them wait."""
        runners = [pid for pid, parent in read_parents().items() if parent == launcher]
        leaders = [pid for pid, parent in read_parents().items() if parent in runners]
        wait = all("wait" in waits_in(pid) for pid in runners) and all("poll" in waits_in(pid) for pid in leaders)
        return (runners, leaders) if wait and len(runners) == len(leaders) == 2 else None

    found = eventually(waiting)
    assert found
    runners, leaders = found
    env.usage().unwrap()  # by now the guest has heard of them
    for pid in (launcher, *runners):
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in leaders:
            os.kill(pid, signal.SIGKILL)
        yield
    finally:
        for pid in (launcher, *runners):
            os.kill(pid, signal.SIGCONT)


def test_a_command_is_not_lost_with_a_process_that_was_kept_ready_for_it() -> None:
    """The kernel may take a waiting process for its memory just before it gets its command; a second one does it, once."""
    with LocalEnvironment() as env:
        env.run("true").unwrap()
        with taken(env):
            started = env.run("read x; echo $x >> said; echo on", wait_seconds=0.2).unwrap()
            assert started.running
        assert env.send(started.id, "in\n", wait_seconds=60).unwrap().exit_code == 0
        shown = env.logs(started.id).unwrap()
        assert (shown.content, shown.exit_code, shown.signal) == ("on\n", 0, None)
        assert env.read("said").unwrap().content == "in\n"
        assert env.run("echo alive").unwrap().output == "alive\n"


@pytest.mark.parametrize("way", ["timeout", "kill", "signal"])
def test_a_command_that_was_stopped_before_it_began_never_begins(way: str) -> None:
    with LocalEnvironment() as env:
        env.run("true").unwrap()
        with taken(env):
            if way == "timeout":
                assert env.run("echo on >> said; sleep 100", timeout_seconds=0.2).code is ErrorCode.timeout  # type: ignore[union-attr]
            else:
                started = env.run("echo on >> said; sleep 100", wait_seconds=0.2).unwrap()
                assert env.kill(started.id, **({} if way == "kill" else {"signal": "SIGTERM"})).ok
        assert eventually(lambda: not any(command.running for command in env.processes().unwrap().commands))
        for _ in range(MOST_SPARES + 2):
            assert env.run("echo alive").unwrap().output == "alive\n"
        assert env.read("said").code is ErrorCode.path_not_found  # type: ignore[union-attr]
