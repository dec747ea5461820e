"""What is kept beside the event log for runs: who holds a run holds it alone, and nothing is left of what nobody goes on with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.record import events as ev
from agent.record.store import EventLog
from agent.record.store.log import RunWriter
from sandbox.errors import SandboxError


def folders(log: EventLog) -> list[str]:
    return sorted(path.name for path in log.path.with_name(f"{log.path.name}.files").iterdir())


def begun(log: EventLog, run: str, parent: str | None = None) -> RunWriter:
    writer = log.begin(run, parent)
    writer.append(ev.RunBegan(task=run))
    return writer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "runs.db") as log:
        yield log


def test_a_run_whose_files_are_forgotten_is_still_held(log: EventLog) -> None:
    with begun(log, "mine") as writer:
        (log.folder("mine") / "before").mkdir()
        (log.folder("mine") / "said").write_text("a file")
        writer.forget()
        assert not (log.folder("mine") / "before").exists()
        assert log.is_written("mine")
        with pytest.raises(SandboxError, match="Another process"):
            log.begin("mine")
    assert not log.is_written("mine")
    assert folders(log) == []


def test_what_a_resumed_run_needs_stays_when_it_is_let_go(log: EventLog) -> None:
    with begun(log, "mine"):
        (log.folder("mine") / "before").mkdir()
    assert folders(log) == ["mine"]
    assert not log.is_written("mine")
    with log.begin("mine") as again:
        again.forget()
    assert folders(log) == []


def test_the_parts_of_a_run_leave_nothing(log: EventLog) -> None:
    """Neither parts that ended, nor those whose process was killed: their folders are as a kill leaves them."""
    with begun(log, "top") as top:
        with begun(log, "ended", "top"):
            assert "ended" in folders(log)
        assert "ended" not in folders(log)
        with begun(log, "killed", "top"), begun(log, "killed-below", "killed"):
            pass
        for run in ("killed", "killed-below"):
            (log.folder(run) / "lock").write_bytes(b"")
        top.forget()
        assert folders(log) == ["top"]
    assert folders(log) == []


def test_a_part_that_is_at_work_keeps_its_folder(log: EventLog) -> None:
    with begun(log, "top") as top, begun(log, "part", "top"):
        top.forget()
        assert log.is_written("part")


def test_only_one_holds_a_run_however_often_it_is_let_go(log: EventLog) -> None:
    """Threads take the run and let it go, its lock file coming and going under the others' hands; never do two hold it."""
    holding, most, took = 0, 0, 0
    guard = threading.Lock()

    def take_and_let_go() -> None:
        nonlocal holding, most, took
        for _ in range(150):
            try:
                writer = log.begin("mine")
            except SandboxError:
                continue
            with guard:
                holding, took = holding + 1, took + 1
                most = max(most, holding)
            writer.forget()
            with guard:
                holding -= 1
            writer.close()

    threads = [threading.Thread(target=take_and_let_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert took > 6
    assert folders(log) == []
