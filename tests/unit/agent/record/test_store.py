"""The event log: only ever added to, every change found, and its faults told in words."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import AgentErrorCode
from agent.record import events as ev
from agent.record.store import EventLog, Logged, default_path, record_of, verify, verify_all
from agent.record.store.chain import INLINE_CHARS, canonical, decode_event, encode_event
from agent.record.store.database import APPLICATION_ID, STEPS, opened, version_of
from sandbox.errors import ErrorCode, SandboxError

LONG = "a line of output\n" * 1000
RUN = "20260101-000000-aaaaaaaa"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "state" / "runs.db") as made:
        yield made


def filled(log: EventLog, run: str = RUN, steps: int = 2) -> str:
    """A run of so many steps, with a text that stands beside the events."""
    with log.begin(run) as writer:
        writer.append(ev.RunBegan(task="a task", options={"$text": "not ours"}))
        writer.append(ev.MessageAdded(message={"role": "user", "content": "a task"}))
        for number in range(1, steps + 1):
            reply = {"reply": {"tool": "run", "args": {"command": f"echo {number}"}}}
            envelope = {"tool_executed": True, "result": {"output": f"{number} {LONG}"}, "notices": []}
            writer.append(ev.StepBegan(step=number))
            writer.append(ev.ActionDecided(step=number, tool="run", args={"command": f"echo {number}"}, reply=reply))
            writer.append(ev.ActionStarted(step=number, tool="run", args={}, request_id=f"{run}-{number}"))
            writer.append(
                ev.ActionExecuted(step=number, envelope=envelope), ev.StateChanged(kit="plan", state=[number])
            )
            writer.append(ev.StepEnded(step=number))
        writer.append(ev.RunEnded(status="finished", reason="finish ended the run."))
    return run


def raw(log: EventLog) -> sqlite3.Connection:
    """The file as somebody opens it who may do everything with it."""
    found = sqlite3.connect(log.path, isolation_level=None)
    for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        found.execute(f"DROP TRIGGER {name}")
    return found


def refusal(path: Path) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        EventLog(path).close()
    assert caught.value.hint
    return caught.value


# --- events ------------------------------------------------------------------
def test_every_kind_comes_back_as_it_was(log: EventLog) -> None:
    given: dict[str, Any] = {
        "task": "t", "message": {"role": "user", "content": LONG}, "text": "hello", "step": 3, "reply": {"reply": "x"},
        "tool": "run", "args": {"a": [1, None, "é\ud800"]}, "patch": "diff", "left_out": ("a: too large",),
        "envelope": {"tool_executed": False}, "kit": "plan", "state": {"open": ["$text"]},
        "connection": {"host": "example.com"}, "status": "finished", "verdict": "edit", "risk": "high", "reasons": ("one",),
    }  # fmt: skip
    for name, kind in ev.KINDS.items():
        event = ev.event_of(name, given)
        log.append(name, [event])
        ((logged, back),) = log.events(name)
        assert (type(back), logged.kind, logged.id) == (kind, name, 1)
        assert back == event


def test_what_is_no_event() -> None:
    with pytest.raises(ValueError, match="not a kind of event"):
        ev.event_of("Nonsense", {})
    with pytest.raises(ValueError, match="is invalid in 'step': Field required"):
        ev.event_of("StepBegan", {})
    assert ev.event_of("StepBegan", {"step": 1, "of_a_newer_version": 2}) == ev.StepBegan(step=1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=20) | st.sampled_from(["$text", "$json", "x" * (INLINE_CHARS + 1)]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["a", "$text", "$json", "$$", ""]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5) | st.sampled_from(["$text", "$json"]), json_values, max_size=4))
def test_data_comes_back_whatever_it_looks_like(data: dict[str, Any]) -> None:
    """Also data that looks like our own references, and texts that are no Unicode."""
    text, blobs = encode_event(data)
    assert text.isascii()
    assert decode_event(text, blobs.__getitem__) == data
    assert canonical(json.loads(text)) == text


def test_an_event_of_many_small_values_stands_beside_as_a_whole(log: EventLog) -> None:
    state = {str(n): n for n in range(50_000)}
    log.append("r", [ev.StateChanged(kit="k", state=state)])
    ((logged, event),) = log.events("r")
    assert len(logged.data) < 200
    assert isinstance(event, ev.StateChanged)
    assert event.state == state
    assert verify(log, "r").intact


def test_an_event_that_is_too_large_is_refused_whole(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.record.store.chain.MOST_BLOB_BYTES", 10_000)
    with pytest.raises(SandboxError, match="cannot be stored") as caught:
        log.append("r", [ev.StepBegan(step=1), ev.UserSpoke(text="x" * 10_001)])
    assert caught.value.code is AgentErrorCode.log_unusable
    assert log.head("r") is None


# --- the log ------------------------------------------------------------------
def test_events_cannot_be_changed_or_removed_or_put_in_between(log: EventLog) -> None:
    filled(log)
    other = sqlite3.connect(log.path, isolation_level=None)
    for attempt in (
        "UPDATE events SET data = '{}'", "DELETE FROM events", "DELETE FROM events WHERE id = 3",
        "UPDATE blobs SET content = x'00'",
        "DELETE FROM blobs", "DELETE FROM blob_uses", "UPDATE blob_uses SET run = 'x'",
        "INSERT INTO events SELECT run, 99, parent, kind, at, data, previous, hash FROM events WHERE id = 1",
        "INSERT OR REPLACE INTO events SELECT * FROM events WHERE id = 1",
        f"INSERT INTO events SELECT '{RUN}', max(id) + 1, parent, kind, at, data, 'other', hash FROM events",
    ):  # fmt: skip
        with pytest.raises(sqlite3.IntegrityError):
            other.execute(attempt)
    other.close()
    assert verify(log, RUN).intact


def test_ids_and_chains_of_runs_that_are_written_at_once(tmp_path: Path) -> None:
    """Three processes and two threads in each write runs of their own into one file."""
    source = """
import sys, threading
from agent.record import events as ev
from agent.record.store import EventLog
log = EventLog(sys.argv[1])
def write(run):
    with log.begin(run) as writer:
        for number in range(40):
            writer.append(ev.StepBegan(step=number), ev.UserSpoke(text="x" * 5000))
threads = [threading.Thread(target=write, args=(f"{sys.argv[2]}-{n}",)) for n in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    path = tmp_path / "runs.db"
    EventLog(path).close()
    writers = [subprocess.Popen([sys.executable, "-c", source, str(path), str(n)]) for n in range(3)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    with EventLog(path) as log:
        verdicts = verify_all(log)
        assert [(v.run, v.events, v.intact) for v in verdicts] == [
            (f"{p}-{t}", 80, True) for p in range(3) for t in range(2)
        ]


def test_a_new_file_opened_by_many_at_once_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.record.store.database._JOURNAL_SECONDS", 60.0)
    path, faults = tmp_path / "runs.db", []

    def open_it() -> None:
        try:
            with EventLog(path) as log:
                log.append(str(threading.get_ident()), [ev.StepBegan(step=1)])
        except SandboxError as error:
            faults.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_run_has_one_writer(log: EventLog) -> None:
    assert not log.is_written(RUN)
    writer = log.begin(RUN)
    assert log.is_written(RUN)
    with pytest.raises(SandboxError) as caught:
        log.begin(RUN)
    assert caught.value.code is AgentErrorCode.run_in_use
    writer.close()
    writer.close()
    assert not log.is_written(RUN)
    log.begin(RUN).close()


def test_a_log_that_is_closed_while_somebody_reads_it_is_complete_in_its_file(log: EventLog, tmp_path: Path) -> None:
    """After gamebox runs show --follow the whole run was in FILE-wal: a copy of the file had nothing of it."""
    filled(log)
    with EventLog(log.path, read_only=True) as reader:
        head = reader.head(RUN)
        log.close()
    copy = tmp_path / "copy.db"
    copy.write_bytes(log.path.read_bytes())
    with EventLog(copy, read_only=True) as copied:
        assert copied.head(RUN) == head is not None


def test_only_the_owner_reads_it(log: EventLog) -> None:
    filled(log)
    for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
        assert stat.S_IMODE((log.path.parent / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    log.close()
    log.path.chmod(0o644)
    EventLog(log.path).close()
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "gamebox/runs.db"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_path() == Path.home() / ".local/state/gamebox/runs.db"


def test_runs_are_found_by_the_beginning_of_their_id(log: EventLog) -> None:
    for run, parent in (("2026-a1", None), ("2026-a2", None), ("2026-b", "2026-a1")):
        log.append(run, [ev.RunBegan(task=run)], parent)
    assert set(log.runs()) == {"2026-a1", "2026-a2"}
    assert log.children("2026-a1") == ["2026-b"]
    assert log.found("2026-b") == "2026-b"
    assert log.found("last") == log.runs()[0]
    for wrong in ("2026-a", "none", "", "2026_b", "%"):
        with pytest.raises(SandboxError) as caught:
            log.found(wrong)
        assert caught.value.code is AgentErrorCode.run_not_found


def test_a_removed_run_leaves_a_tombstone_and_the_texts_of_others(log: EventLog) -> None:
    filled(log)
    filled(log, "other")
    log.append("child", [ev.RunBegan(task=LONG)], RUN)
    head = log.head(RUN)
    assert head is not None
    log.remove(RUN)
    assert log.every_run() == ["other"]
    assert verify(log, "other").intact
    assert (log.removed(RUN) or {})["head"] == head[1]
    assert (log.removed("child") or {})["events"] == 1
    with pytest.raises(SandboxError):
        log.append(RUN, [ev.StepBegan(step=1)])
    log.remove("other")
    with closing(sqlite3.connect(log.path)) as database:
        assert database.execute("SELECT count(*) FROM blobs").fetchone() == (0,)


# --- verify ------------------------------------------------------------------
def test_verify_finds_every_column_of_every_row(log: EventLog) -> None:
    filled(log)
    assert verify(log, RUN).intact
    rows = list(log.logged(RUN))
    columns = {
        "run": "other", "id": 77, "parent": "another", "kind": "StepBegan2", "at": "2020-01-01", "data": "{}", "previous": "0" * 64,
        "hash": "f" * 64,
    }  # fmt: skip
    with raw(log) as database:
        for row in rows:
            for column, value in columns.items():
                database.execute("BEGIN")
                database.execute(f"UPDATE events SET {column} = ? WHERE run = ? AND id = ?", (value, row.run, row.id))
                assert not all(v.intact for v in seen(database)), (row.id, column)
                database.execute("ROLLBACK")
    database.close()
    assert verify(log, RUN).intact


def seen(database: sqlite3.Connection) -> list[Any]:
    """What ``verify_all`` says of what this connection sees in its open transaction."""
    log = object.__new__(EventLog)
    log.path, log._lock, log._database = Path("x"), threading.RLock(), database
    return verify_all(log)


def test_verify_finds_what_was_removed_or_moved(log: EventLog) -> None:
    filled(log)
    rows = list(log.logged(RUN))
    database = raw(log)
    swapped = "UPDATE events SET id = CASE id WHEN ? THEN -1 WHEN ? THEN ? END WHERE id IN (?, ?)"
    for row in rows[:-1]:
        database.execute("BEGIN")
        database.execute("DELETE FROM events WHERE id = ?", (row.id,))
        assert not seen(database)[0].intact, row.id
        database.execute("UPDATE events SET id = id - 1 WHERE id > ?", (row.id,))
        assert not seen(database)[0].intact, row.id
        database.execute("ROLLBACK")
        database.execute("BEGIN")
        database.execute(swapped, (row.id, row.id + 1, row.id, row.id, row.id + 1))
        database.execute("UPDATE events SET id = ? WHERE id = -1", (row.id + 1,))
        assert not seen(database)[0].intact, row.id
        database.execute("ROLLBACK")
    database.close()


@pytest.mark.parametrize("change", [
    "UPDATE blobs SET content = x'00'", "DELETE FROM blobs", "DELETE FROM blob_uses", "UPDATE blobs SET sha256 = 'x' || sha256",
    "UPDATE events SET data = CAST(x'ff' AS TEXT) WHERE id = 2", "UPDATE events SET data = NULL || '' WHERE 0",
])  # fmt: skip
def test_verify_finds_changed_texts(log: EventLog, change: str) -> None:
    filled(log)
    database = raw(log)
    database.execute(change)
    changed = database.execute("SELECT changes()").fetchone()[0]
    database.close()
    assert verify(log, RUN).intact is (changed == 0)


def test_a_cut_tail_shows_only_in_the_head_and_the_missing_end(log: EventLog) -> None:
    filled(log)
    before = verify(log, RUN)
    assert before.ended
    database = raw(log)
    database.execute("DELETE FROM events WHERE id >= ?", (before.events - 2,))
    database.close()
    after = verify(log, RUN)
    assert (after.intact, after.ended) == (True, False)
    assert not verify(log, RUN, before.head).intact
    assert verify(log, RUN, after.head).intact


def test_a_log_that_makes_no_sense_is_told(log: EventLog) -> None:
    log.append("r", [ev.ActionDecided(step=1, reply={})])
    with pytest.raises(SandboxError, match="make no sense"):
        record_of(log, "r")
    database = raw(log)
    database.execute("UPDATE events SET kind = 'Unknown'")
    database.close()
    with pytest.raises(SandboxError, match="cannot be read"):
        list(log.events("r"))


# --- the file ------------------------------------------------------------------
def test_what_is_no_log(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be looked at\n" * 100)
    assert refusal(text).code is AgentErrorCode.log_unusable
    assert "not an event log" in str(refusal(text))
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()
    before = other.read_bytes()
    assert "another program" in str(refusal(other))
    assert other.read_bytes() == before
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder").code is AgentErrorCode.log_unusable
    assert refusal(text / "below").code is AgentErrorCode.log_unusable


def test_a_damaged_file_is_told(log: EventLog) -> None:
    filled(log, steps=20)
    log.close()
    with log.path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(log.path.stat().st_size - 4096))
    with pytest.raises(SandboxError) as caught, EventLog(log.path) as again:
        verify_all(again)
    assert caught.value.code is AgentErrorCode.log_unusable


def test_a_newer_log_is_left_alone(log: EventLog) -> None:
    filled(log)
    log.close()
    with sqlite3.connect(log.path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert "newer" in str(refusal(log.path))


def test_a_full_disk_is_told_and_nothing_is_half_written(log: EventLog) -> None:
    filled(log)
    pages = log._database.execute("PRAGMA page_count").fetchone()[0]
    log._database.execute(f"PRAGMA max_page_count = {pages}")
    head = log.head(RUN)
    with pytest.raises(SandboxError) as caught:
        log.append(RUN, [ev.StepBegan(step=9), ev.UserSpoke(text=os.urandom(100_000).hex())])
    assert caught.value.code is ErrorCode.host_disk_full
    assert log.head(RUN) == head
    assert verify(log, RUN).intact


@pytest.mark.parametrize("version", range(len(STEPS) + 1))
def test_migrations_from_every_version_end_alike(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a step that is still to come: a database of today is brought to it with all that is in it."""
    package = tmp_path / "steps"
    package.mkdir()
    for step in STEPS:
        (package / step).write_text((files("agent.record.store") / step).read_text())
    (package / "next.sql").write_text(
        "CREATE TABLE more (\n  x  -- a comment; with a semicolon\n);\nINSERT INTO more VALUES (1);\n"
    )
    monkeypatch.setattr("agent.record.store.database.files", lambda _: package)
    path = tmp_path / "old.db"
    if version:
        old = opened(path, STEPS[:version])
        assert version_of(old) == version
        old.close()
    new = opened(path, (*STEPS, "next.sql"))
    fresh = opened(tmp_path / "fresh.db", (*STEPS, "next.sql"))
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert new.execute(schema).fetchall() == fresh.execute(schema).fetchall()
    assert version_of(new) == len(STEPS) + 1
    assert new.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert new.execute("SELECT x FROM more").fetchall() == [(1,)]
    new.close()
    fresh.close()


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.db"
    with EventLog(path) as log:
        filled(log)
    (tmp_path / "bad.sql").write_text("CREATE TABLE more (x);\nCREATE TABLE events (x);\n")
    monkeypatch.setattr("agent.record.store.database.files", lambda _: tmp_path)
    with pytest.raises(SandboxError):
        opened(path, (*STEPS, "bad.sql"))
    with EventLog(path) as log:
        assert verify(log, RUN).intact
        assert log._rows("SELECT count(*) FROM sqlite_master WHERE name = 'more'", ()) == [(0,)]


# --- reading ------------------------------------------------------------------
def test_a_run_as_its_events_tell_it(log: EventLog) -> None:
    filled(log)
    record = record_of(log, RUN)
    assert (record.task, record.status, len(record.steps), record.pending) == ("a task", "finished", 2, None)
    assert [m["role"] for m in record.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert record.kits == {"plan": [2]}
    assert (record.steps[1].envelope or {})["result"]["output"] == f"2 {LONG}"
    assert record.options == {"$text": "not ours"}


@pytest.mark.parametrize(("cut", "pending"), [(2, False), (3, False), (4, True), (5, True), (7, True), (8, False)])
def test_where_a_run_that_was_cut_off_goes_on(log: EventLog, cut: int, pending: bool) -> None:
    filled(log, steps=1)
    events = list(log.events(RUN))[:cut]
    copy: list[tuple[Logged, ev.Event]] = events
    for _, event in copy:
        log.append("cut", [event])
    record = record_of(log, "cut")
    assert (record.pending is not None) is pending
    assert record.status is None
