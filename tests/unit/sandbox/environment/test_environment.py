"""Environment: what an action's metadata does, and that nothing a tool or an approver does gets out as an exception."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import Action
from agent.tools import SandboxAction
from sandbox import Environment, Limits, LocalEnvironment
from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.operations import Request
from sandbox.pipe.watching import Watch
from sandbox.testing import FakeEnvironment


class Slow(FakeEnvironment):
    """Takes ten seconds for everything, or as long as it is not cancelled."""

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        assert watch is not None
        stopped = threading.Event()
        with watch.stopping(stopped.set):
            if stopped.wait(10):
                raise OperationError(ErrorCode.cancelled, "It was cancelled.", effects="none")
        return super().perform(request)


class Faulty(FakeEnvironment):
    """Fails everything in a way that can pass."""

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        raise OperationError(ErrorCode.io_error, "The disk hiccuped.")


def test_timeout_s_bounds_an_operation_that_has_no_timeout_of_its_own() -> None:
    answer = Slow({"a": "b"}).execute_action(SandboxAction("read", metadata={"timeout_s": 0.05}), {"path": "a"})
    assert answer["code"] == "timeout"
    assert answer["effects"] == "none"
    assert answer["error"] == "read took more than 0.05 seconds and was stopped."


def test_timeout_s_ends_the_operation_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Review of the sandbox, 5.3: it went on in a thread, and the model was told that it ran on the host."""
    search, pid = tmp_path / "rg", tmp_path / "pid"
    search.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/new; mv {tmp_path}/new {pid}\nexec sleep 60\n")
    search.chmod(0o755)

    class Thread(threading.Thread):
        """Its time counts from when the search has begun."""

        def join(self, timeout: float | None = None) -> None:
            deadline = time.monotonic() + 60
            while not pid.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            super().join(timeout)

    monkeypatch.setattr("sandbox.environment.host_actions.threading", SimpleNamespace(Thread=Thread))
    with LocalEnvironment(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as env:
        answer = env.execute_action(SandboxAction("search", metadata={"timeout_s": 0.5}), {"pattern": "x"})
        assert (answer["code"], answer["effects"]) == ("timeout", "none")
        assert "0.5 seconds and was stopped" in answer["error"]
        assert not Path("/proc", pid.read_text().strip()).exists()


def test_timeout_s_ends_a_wait_for_what_a_command_answers() -> None:
    with LocalEnvironment() as env:
        ident = env.run("cat > /dev/null; sleep 60", background=True).unwrap().id
        args = {"id": ident, "wait_seconds": 30}
        answer = env.execute_action(SandboxAction("send", metadata={"timeout_s": 0.2}), args)
        assert answer["code"] == "timeout"
        assert env.kill(ident).ok


def test_an_operation_that_cannot_be_stopped_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.environment.host_actions.STOP_SECONDS", 0.05)
    over = threading.Event()

    class Stuck(FakeEnvironment):
        def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
            over.wait(10)
            return super().perform(request)

    answer = Stuck({"a": "b"}).execute_action(SandboxAction("read", metadata={"timeout_s": 0.05}), {"path": "a"})
    over.set()
    assert (answer["code"], answer["effects"]) == ("timeout", "unknown")
    assert "may still be at work in the sandbox" in answer["hint"]


def test_timeout_s_becomes_the_timeout_of_a_command() -> None:
    with LocalEnvironment() as env:
        action = SandboxAction("run", metadata={"timeout_s": 0.1})
        answer = env.execute_action(action, {"command": "sleep 5"})
        assert answer["code"] == "timeout"
        assert "0.1 seconds" in answer["error"]


def test_idempotent_makes_a_passing_failure_retryable() -> None:
    plain = Faulty({}).execute_action(SandboxAction("read"), {"path": "a"})
    marked = Faulty({}).execute_action(SandboxAction("read", metadata={"idempotent": True}), {"path": "a"})
    assert (plain["retryable"], marked["retryable"]) == (False, True)


def test_idempotent_does_not_make_a_lasting_failure_retryable() -> None:
    answer = FakeEnvironment({}).execute_action(SandboxAction("read", metadata={"idempotent": True}), {"path": "a"})
    assert (answer["code"], answer["retryable"]) == ("path_not_found", False)


def test_the_result_of_an_operation_is_checked_against_return_schema() -> None:
    action = SandboxAction("read")
    action.return_schema = {"type": "object", "properties": {"total_lines": {"const": 2}}}
    env = FakeEnvironment({"one": "1\n", "two": "1\n2\n"})
    assert env.execute_action(action, {"path": "two"})["tool_executed"] is True
    assert env.execute_action(action, {"path": "one"})["code"] == "invalid_result"


def test_an_approver_that_fails_has_not_approved() -> None:
    def approver(name: str, args: Mapping[str, Any]) -> bool:
        raise RuntimeError("no terminal")

    called: list[str] = []
    action = Action("send", lambda: called.append("sent"), "Send it.", {}, metadata={"requires_approval": True})
    assert Environment(approver).execute_action(action, {})["code"] == "approval_refused"
    assert called == []


def test_what_is_no_action_is_refused() -> None:
    assert Environment().execute_action(None, {})["code"] == "unknown_tool"  # type: ignore[arg-type]


def test_a_local_environment_claims_no_limits_it_does_not_hold() -> None:
    said = " ".join(LocalEnvironment().describe().values())
    assert "NO ISOLATION" in said
    assert "memory" not in said
    assert "bridge" not in said
    assert "ends by itself when nothing was done in it for 60 minutes" in said
    assert "by itself" not in LocalEnvironment(limits=Limits(idle_seconds=None)).describe()["limits"]


def test_a_local_environment_starts_where_a_folder_has_the_name_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox/__init__.py").write_text("raise RuntimeError('another package (finding UX 3)')\n")
    monkeypatch.chdir(tmp_path)
    with LocalEnvironment(tmp_path) as env:
        assert env.search("another package").unwrap().matches
        assert env.run("true").unwrap().exit_code == 0


def test_a_local_environment_refuses_a_limit_it_is_told_to_enforce() -> None:
    env = LocalEnvironment(limits=Limits(disk_bytes=50 << 30, disk="hard"))
    with pytest.raises(SandboxError, match="DockerEnvironment") as caught:
        env.start()
    assert caught.value.code is ErrorCode.limit_not_enforced


def test_hints_name_only_what_can_do_it() -> None:
    with LocalEnvironment() as env:
        fork = env.fork()
        assert not fork.ok
        assert fork.hint == "Use DockerEnvironment."
    for method in (Environment().pause, Environment().resume):
        with pytest.raises(SandboxError) as caught:
            method()
        assert caught.value.hint == "Use DockerEnvironment."
