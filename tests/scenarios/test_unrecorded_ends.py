"""Runs whose end cannot be written into the log: what they did reaches the user all the same, and nothing goes on unlogged."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from agent.record.store import EventLog, record_of, verify
from tests.programs import run_gamebox
from tests.scripted_runs import left_of

pytestmark = pytest.mark.engine
FINISH = {"tool": "finish", "args": {"summary": "all done"}}
# The command, in a process whose log breaks at an event: by a disk that is full, by a database that is damaged.
BROKEN = """
import sys
from agent.record import events as ev
from agent.record.store import log as store
from agent.errors import error_code
from sandbox.errors import SandboxError
own, kind, code = store.EventLog.append, sys.argv.pop(1), sys.argv.pop(1)
broken = []
def append(self, run, events, parent=None):
    if broken or any(event.kind == kind for event in events):
        broken.append(True)
        raise SandboxError(error_code(code), "There is no room left for the event log.", "Free some space there.")
    return own(self, run, events, parent)
store.EventLog.append = append
from agent.cli.app import main
main()
"""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def gamebox(*args: str, code: int = 0, breaking: tuple[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    if breaking is None:
        done = run_gamebox(*args)
    else:
        command = [sys.executable, "-c", BROKEN, *breaking, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def asked(tmp_path: Path, repo: Path, *more: str) -> list[str]:
    steps: list[Any] = [{"tool": "run", "args": {"command": "echo two >> a.txt"}}, FINISH]
    script = tmp_path / f"{uuid.uuid4().hex}.json"
    script.write_text(json.dumps(steps))
    return ["agent", "count", "--agent", "coding", "--repo", str(repo), "--script", str(script), *more]


@pytest.mark.usefixtures("_no_sandbox_is_left")
@pytest.mark.parametrize("code", ["host_disk_full", "log_unusable"])
def test_the_diff_of_a_finished_run_is_printed_and_its_sandbox_kept(repo: Path, tmp_path: Path, log: Path, code: str) -> None:
    done = gamebox(*asked(tmp_path, repo), code=1, breaking=("RunEnded", code))
    assert "+two" in done.stdout
    assert "all done" in done.stderr
    assert "could not be recorded" in done.stderr
    assert "hint: Free some space" in done.stderr
    with EventLog(log) as events:
        (run,) = events.runs()
        assert record_of(events, run).status is None
    assert f"gamebox runs resume {run}" in done.stderr
    assert len(left_of(log)) == 1
    again = gamebox("runs", "resume", run)
    assert "+two" in again.stdout
    with EventLog(log) as events:
        assert verify(events, run).ended
        assert record_of(events, run).status == "finished"


@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_what_was_to_be_applied_is_and_the_exit_code_says_that_no_end_is_recorded(repo: Path, tmp_path: Path) -> None:
    done = gamebox(*asked(tmp_path, repo, "--apply", "--json"), code=1, breaking=("RunEnded", "host_disk_full"))
    told = json.loads(done.stdout)
    assert (told["status"], told["applied"], told["unrecorded"], told["resumable"]) == ("finished", True, True, True)
    assert (repo / "a.txt").read_text() == "one\ntwo\n"
    gamebox("runs", "rm", told["run"])


@pytest.mark.usefixtures("_no_sandbox_is_left")
@pytest.mark.parametrize("kind", ["StepBegan", "ActionDecided", "ActionStarted", "ActionExecuted", "StepEnded"])
def test_a_log_that_breaks_on_the_way_ends_the_run_and_says_so(repo: Path, tmp_path: Path, log: Path, kind: str) -> None:
    done = gamebox(*asked(tmp_path, repo, "--json"), code=1, breaking=(kind, "host_disk_full"))
    told = json.loads(done.stdout)
    assert (told["status"], told["unrecorded"], told["resumable"]) == ("failed", True, True)
    assert "could not be recorded" in told["reason"]
    assert ("+two" in (told["diff"] or "")) is (kind in ("ActionExecuted", "StepEnded"))
    again = gamebox("runs", "resume", told["run"])
    assert again.stdout.count("+two") == 1


@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_diff_for_which_there_is_no_room_leaves_the_sandbox(
    repo: Path, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of temporary files is full when the run has ended: its sandbox is the only place of what it did."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setenv("TMPDIR", str(small))
        (repo / "a.txt").write_text("one\n" * 50_000)
        done = gamebox(*asked(tmp_path, repo), code=1)
        monkeypatch.delenv("TMPDIR")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    with EventLog(log) as events:
        (run,) = events.runs()
        assert record_of(events, run).status == "finished"
    assert f"gamebox run --in run-{run}" in done.stderr
    looked = gamebox("run", "--in", f"run-{run}", "--", "tail", "-1", "a.txt")
    assert looked.stdout.endswith("two\n")
    gamebox("rm", f"run-{run}")
