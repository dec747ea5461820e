"""The event log under what a host does to it: full disks, two processes at one run, a clock that goes backwards, cut files."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import AgentRun
from agent.core.status import RunStatus
from agent.errors import AgentErrorCode
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog, record_of, verify, verify_all
from sandbox import LocalEnvironment
from sandbox.errors import ErrorCode, SandboxError
from tests.programs import run_gamebox
from tests.unit.agent.record.delegating_runs import BOSS, CALLS, DONE, Killed, MortalLog, call, done_in, tree, tree_of

from .own_engine import lacking

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(folder)], check=False)
    if made.returncode:
        lacking("needs root, to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """Have so many bytes left on the disk."""
    file = folder / "full"
    found = os.statvfs(folder)
    size = max(found.f_bavail * found.f_frsize - left, 0)
    with file.open("wb") as out:
        out.write(bytes(size))
    return file


def gone_on_with(log: EventLog, sandbox: LocalEnvironment, **options: Any) -> AgentRun:
    with log.begin("r") as writer:
        return resume(tree(sandbox, **options), writer)


@pytest.mark.parametrize("left", [0, 4096, 8192, 16384, 24576, 32768, 49152, 65536, 98304, 131072, 229376, 327680, 425984])
def test_a_disk_that_fills_up_never_lets_a_run_go_on_unlogged(small: Path, left: int) -> None:
    """Whichever write it is that finds no room: what was carried out is in the log as started, the run says so, and goes on
    where it was once there is room.
    """
    with LocalEnvironment(track_changes=False) as sandbox:
        EventLog(small / "runs.db").close()
        full: list[Path] = []

        def filling(prompt: Any) -> Any:
            if not full:
                full.append(fill(small, left))
            return BOSS[0]

        with EventLog(small / "runs.db") as log:
            boss = [filling, *BOSS[1:]]
            outcome = execute_recorded(tree(sandbox, boss=boss), "go", log, run="r")
            done = done_in(sandbox)
            assert outcome.status is RunStatus.failed or left > 131_072, outcome.reason
            if outcome.status is RunStatus.failed:
                assert isinstance(outcome.error, SandboxError)
                assert outcome.error.code is ErrorCode.host_disk_full
                assert "runs.db" in outcome.error.message
            full[0].unlink()
            kinds = [(logged.run, logged.kind) for run in log.every_run() for logged in log.logged(run)]
            started = sum(kind == "ActionStarted" for _, kind in kinds)
            assert len(done) <= started, "nothing was carried out that is not in the log"
            assert all(verdict.intact for verdict in verify_all(log))
            if record_of(log, "r").status is None:
                outcome = gone_on_with(log, sandbox, boss=boss)
            assert outcome.status is RunStatus.finished
            assert done_in(sandbox) == DONE
            assert record_of(log, "r").status == "finished"


def test_a_log_that_cannot_be_begun_on_a_full_disk(small: Path) -> None:
    fill(small, 0)
    with pytest.raises(SandboxError) as caught:
        EventLog(small / "sub" / "runs.db").close()
    assert caught.value.code is ErrorCode.host_disk_full
    assert "Free some space" in caught.value.hint


RESUMING = """
import sys, time
from agent.record.resume import resume
from agent.record.store import EventLog
from sandbox import LocalEnvironment
from sandbox.errors import SandboxError
from tests.unit.agent.record.delegating_runs import tree
with EventLog(sys.argv[1]) as log, LocalEnvironment(track_changes=False) as sandbox:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        with log.begin("r") as writer:
            print(resume(tree(sandbox), writer).status.value)
    except SandboxError as error:
        print(error.code.value, error.message, error.hint)
"""


def test_two_processes_that_resume_one_run_at_once(tmp_path: Path, sandbox: LocalEnvironment) -> None:
    """One goes on, the other is told by words; every event is there once."""
    path = tmp_path / "runs.db"
    with MortalLog(path) as mortal:
        mortal.dies_at, mortal.after = 30, True
        with pytest.raises(Killed):
            execute_recorded(tree(sandbox), "go", mortal, run="r")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RESUMING, str(path)]
    racing = [
        subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in racing:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=60)[0].strip() for process in racing)
    assert said[0] == "finished", said
    for words in said[1:]:
        assert words.startswith(("run_in_use", "run_not_resumable")), said
        assert "r " in words
    with EventLog(path) as log:
        assert all(verdict.intact and verdict.ended for verdict in verify_all(log))
        record = record_of(log, "r")
        assert (record.status, record.resumed, record.usage.calls) == ("finished", 1, CALLS)


def test_a_clock_that_goes_backwards(tmp_path: Path, sandbox: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is that of the ids and steps, not of the times; nothing is measured by that clock."""
    hours = itertools.count(9999, -1)
    monkeypatch.setattr("agent.record.store.log.now", lambda: f"{next(hours):04d}-01-01T00:00:00.000+00:00")
    with MortalLog(tmp_path / "runs.db") as mortal:
        mortal.dies_at, mortal.after = 60, True
        with pytest.raises(Killed):
            execute_recorded(tree(sandbox), "go", mortal, run="r")
    with EventLog(tmp_path / "runs.db") as log:
        assert gone_on_with(log, sandbox).status is RunStatus.finished
        assert done_in(sandbox) == DONE
        records = tree_of(log, "r")
        assert [record.agent for record in records] == ["", "middle", "worker", "worker"]
        assert [step.tool for step in records[0].steps] == [step["tool"] for step in BOSS]
        assert records[0].seconds >= 0
        assert all(verdict.intact for verdict in verify_all(log))


def cut_off(path: Path, sandbox: LocalEnvironment, dies_at: int, **options: Any) -> None:
    with MortalLog(path) as mortal:
        mortal.dies_at, mortal.after = dies_at, True
        with pytest.raises(Killed):
            execute_recorded(tree(sandbox, **options), "go", mortal, run="r")


@pytest.mark.parametrize("below", [False, True])
def test_a_text_that_is_missing(tmp_path: Path, sandbox: LocalEnvironment, below: bool) -> None:
    """Of the run, or of a part of it that is to be taken up: which event it is, in words; nothing is carried out."""
    path, long = tmp_path / "runs.db", call("run", command="echo x >> done; : " + "x" * 5000)
    scripts: dict[str, Any] = {"middle": [long, *BOSS]} if below else {"boss": [long, *BOSS]}
    cut_off(path, sandbox, 24, **scripts)
    database = sqlite3.connect(path, isolation_level=None)
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    database.execute("DELETE FROM blobs")
    database.close()
    before = done_in(sandbox)
    with EventLog(path) as log:
        flaws = {verdict.run: [flaw.id for flaw in verdict.flaws] for verdict in verify_all(log)}
        run = log.children("r")[0] if below else "r"
        assert flaws[run], "verify says which events"
        with pytest.raises(SandboxError) as caught:
            gone_on_with(log, sandbox, **scripts)
        assert caught.value.code is AgentErrorCode.log_unusable
        assert f"Event {flaws[run][0]} of the run {run}" in caught.value.message
        assert f"gamebox runs verify {run}" in caught.value.hint
    assert done_in(sandbox) == before


def test_a_write_ahead_log_that_was_cut(tmp_path: Path, sandbox: LocalEnvironment) -> None:
    """By a disk that lied, or a copy in the middle of a write: what is left is whole events, and the run goes on from there without
    doing anything twice; what is missing shows against a head that was kept.
    """
    path = tmp_path / "runs.db"
    log = MortalLog(path)
    log.dies_at, log.after = 60, True
    with pytest.raises(Killed):
        execute_recorded(tree(sandbox), "go", log, run="r")
    wal = (tmp_path / "runs.db-wal").read_bytes()
    heads = {verdict.run: verdict.head for verdict in verify_all(log)}
    assert len(wal) > 100_000
    for number, share in enumerate((0.999, 0.9, 0.7, 0.55)):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        shutil.copy(path, folder / "runs.db")
        (folder / "runs.db-wal").write_bytes(wal[: int(len(wal) * share)] + os.urandom(100))
        with EventLog(folder / "runs.db") as cut:
            verdicts = {verdict.run: verdict for verdict in verify_all(cut)}
            assert all(verdict.intact for verdict in verdicts.values())
            lost = [run for run, head in heads.items() if run not in verdicts or not verify(cut, run, head).intact]
            assert lost, share
    log.close()
    assert share < 0.6
    with EventLog(folder / "runs.db") as cut:
        assert gone_on_with(cut, sandbox).status is RunStatus.finished
        assert done_in(sandbox) == DONE, "the guest answers requests that it knows with their first result"


def test_a_log_of_a_newer_version_is_left_alone_by_every_command(tmp_path: Path, sandbox: LocalEnvironment) -> None:
    path = tmp_path / "runs.db"
    cut_off(path, sandbox, 30)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    for command in (["ls"], ["show", "r"], ["verify"], ["resume", "r"], ["rm", "r"], ["export", "r"]):
        done = run_gamebox("runs", *command, "--log", path)
        assert done.returncode == 2, (command, done)
        assert "newer gamebox (log version 99" in done.stderr.replace("\n", " ")
        assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
