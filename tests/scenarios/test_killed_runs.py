"""A run whose orchestrator is killed with SIGKILL at every step, and at every point of a step, on a real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from agent.record.store import EventLog, record_of, verify
from sandbox import DockerEnvironment
from sandbox.docker.engine.client import connect
from sandbox.docker.kept.inventory import remove, sandboxes

from .killed_run import LAST, POINTS, steps

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


def orchestrate(log: Path, run: str, marks: Path, step: int, point: str) -> subprocess.CompletedProcess[str]:
    """The orchestrator, until it kills itself at that point."""
    command = [sys.executable, "-m", "tests.scenarios.killed_run", str(log), run, str(marks), str(step), point]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)


def kills() -> list[tuple[int, str]]:
    """Each step at one of the points, in turn; one step of each kind of action that matters at all of them."""
    found = []
    for step in range(1, LAST + 1):
        at_all = step in (7, 8)  # a command with a request id; a mark on the host, which has none
        found += [(step, point) for n, point in enumerate(POINTS) if at_all or n == step % len(POINTS)]
    found.remove((8, "after_started"))  # it is not started again after that, so that there would be no "during"
    return found


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_at_every_step_and_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log_path, marks, run = tmp_path / "runs.db", tmp_path / "marks", f"killed-{uuid.uuid4().hex[:12]}"
    counts: list[int] = []
    try:
        for step, point in kills():
            killed = orchestrate(log_path, run, marks, step, point)
            assert killed.returncode == -signal.SIGKILL, (step, point, killed.stdout, killed.stderr)
            with EventLog(log_path) as log:
                verdict = verify(log, run)
                assert verdict.intact, verdict
                counts.append(verdict.events)
        check_traces(tmp_path, log_path, run, marks)
        last = orchestrate(log_path, run, marks, 0, "")
        assert last.stdout == "finished finish ended the run.\n", last.stderr
    finally:
        for each in sandboxes(connect(), every=True):
            if each.name == f"run-{run}":
                remove(each, force=True)
    assert counts == sorted(counts), "no event was lost"
    check_record(log_path, run, marks)


def check_traces(tmp_path: Path, log_path: Path, run: str, marks: Path) -> None:
    """What was to be done in the sandbox was done there, each once, in order."""
    expected = [n for n, step in enumerate(steps(), 1) if ">> done" in str(step)]
    env = DockerEnvironment.attach(f"run-{run}")
    try:
        assert [int(line) for line in env.read("done").unwrap().content.split()] == expected
        files = {entry.path for entry in env.list(".").unwrap().entries}
        assert {s["args"]["path"] for s in steps() if s["tool"] == "write"} <= files
    finally:
        env.close()


def check_record(log_path: Path, run: str, marks: Path) -> None:
    with EventLog(log_path) as log:
        assert verify(log, run).intact
        record = record_of(log, run)
    assert (record.status, len(record.steps)) == ("finished", LAST)
    assert [step.tool for step in record.steps] == [step["tool"] for step in steps()]
    assert all(step.ended for step in record.steps)
    assert [m["role"] for m in record.messages] == ["user", *["assistant", "tool"] * LAST]
    marked = [int(line) for line in marks.read_text().split()]
    assert len(marked) == len(set(marked)), "no mark was left twice"
    for step in record.steps:
        envelope = step.envelope or {}
        if step.tool == "mark" and envelope.get("code") == "effects_unknown":
            assert envelope["effects"] == "unknown"
        else:
            assert envelope.get("tool_executed") is True, (step.number, envelope)
            if step.tool == "mark":
                assert step.number in marked
    told = {s.number for s in record.steps if (s.envelope or {}).get("code") == "effects_unknown"}
    due = {
        n for n, point in kills()
        if steps()[n - 1]["tool"] == "mark" and point in ("after_started", "during")
    }  # fmt: skip
    assert told == due, "told where it is due, and nowhere else"
    assert record.kits == {"counter": sum(step["tool"] == "count" for step in steps())}
