"""Logs that are damaged, foreign, of a newer version, empty or not there: the commands on runs say what is wrong, and what next."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cli.app import main
from agent.record import events as ev
from agent.record.store import EventLog

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A command of ``gamebox runs`` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def called(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["runs", *args])
        return (int(ended.value.code or 0), *capsys.readouterr())

    return called


def made(path: Path, *runs: str) -> Path:
    with EventLog(path) as log:
        for run in runs:
            log.append(run, [ev.RunBegan(task=f"do {run}"), ev.RunEnded(status="finished", reason="ok")])
    return path


def newer(path: Path) -> None:
    database = sqlite3.connect(made(path, "one"))
    database.execute("PRAGMA user_version = 99")
    database.close()


def foreign(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (a)")
    database.close()


def damaged(path: Path) -> None:
    content = bytearray(made(path, "one").read_bytes())
    content[4096:] = random.Random(1).randbytes(len(content) - 4096)
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = made(path, "one").read_bytes()
    path.write_bytes(content[: len(content) // 2])


COMMANDS = (
    ["show", "last"], ["export", "last"], ["diff", "last", "last"], ["replay", "last", "--local"], ["verify", "last"],
    ["rm", "last"], ["resume", "last"],
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (newer, "newer gamebox (log version 99"), (foreign, "a database of another program"), (damaged, "is damaged"),
        (cut, "is damaged"), (lambda path: path.write_text("no database " * 500), "is not an event log"),
        (Path.mkdir, "cannot be opened"),
    ],
    ids=["newer", "foreign", "damaged", "cut", "text", "folder"],
)  # fmt: skip
def test_a_log_that_cannot_be_used(make: Callable[[Path], object], said: str, call: Call, tmp_path: Path) -> None:
    make(tmp_path / "it.db")
    for command in (["ls"], *COMMANDS):
        code, out, err = call(*command, "--log", "it.db")
        assert (code, out) == (2, ""), command
        assert f"The event log it.db {said}" in err or said in err, (command, err)
        assert "log_unusable" in err
        assert "hint: " in err
        assert "--log" in err


def test_no_log_at_all(call: Call, tmp_path: Path) -> None:
    assert call("ls", "--log", "it.db")[0] == 0
    for command in COMMANDS:
        code, _, err = call(*command, "--log", "it.db")
        assert (code, "There is no event log it.db" in err, "hint: gamebox agent" in err) == (2, True, True), (command, err)
    assert list(tmp_path.iterdir()) == []  # to look is not to make


def test_a_log_without_runs(call: Call, tmp_path: Path) -> None:
    made(tmp_path / "it.db")
    for command in COMMANDS:
        code, _, err = call(*command, "--log", "it.db")
        assert (code, "No run is recorded in the log it.db" in err) == (2, True), (command, err)


def test_ids_that_mean_none_or_several(call: Call, tmp_path: Path) -> None:
    made(tmp_path / "it.db", "20260101-a", "20260101-b", "20260101-c", "other_run")
    for command in COMMANDS:
        several = [command[0], *(["20260101"] * command.count("last")), *command[1 + command.count("last") :]]
        code, _, err = call(*several, "--log", "it.db")
        assert code == 2
        assert "'20260101' could be any of 20260101-a, 20260101-b, 20260101-c" in err, (command, err)
        assert "hint: Give more of its id. List the runs with: gamebox runs ls --log it.db." in err
    for named in ("%", "_", "other%", "", "x" * 5000):
        code, _, err = call("export", named, "--log", "it.db")
        assert (code, "There is no run" in err) == (2, True), err
    code, _, err = call("export", "no/such.json", "--log", "it.db")
    assert (code, "There is no file no/such.json." in err) == (2, True)
    assert call("show", "other", "--log", "it.db")[0] == 0


def test_a_run_that_cannot_be_read_hides_no_other_and_can_be_removed(call: Call, tmp_path: Path) -> None:
    made(tmp_path / "it.db", "good", "bad")
    database = sqlite3.connect(tmp_path / "it.db")
    database.execute("DROP TRIGGER events_stay_as_they_are")
    database.execute("UPDATE events SET kind = 'Nonsense' WHERE run = 'bad' AND id = 1")
    database.commit()
    database.close()
    code, out, err = call("ls", "--log", "it.db")
    assert code == 0
    assert "do good" in out
    assert "unreadable" in next(line for line in out.split("\n") if line.startswith("bad"))
    assert "runs verify bad" in err
    assert call("rm", "bad", "--log", "it.db")[:2] == (0, "bad\n")
    code, out, err = call("ls", "--log", "it.db")
    assert ("bad" in out, err) == (False, "")
