"""The event log on SQLite: append-only, a chain of hashes for each run, one file for many processes, one writer for each run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from agent.errors import AgentErrorCode
from agent.record.events import Event, event_of
from sandbox.envelope import now
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.names import RULES, is_run_id

from .chain import Blobs, decode_event, encode_event, hash_of
from .database import opened, translated, version_of, writing
from .folders import LOCK, checked_run, empty, opened_folder
from .signing import is_signature, own_key, signature_of, state_folder

_COLUMNS = "run, id, parent, kind, at, data, previous, hash"


def default_path() -> Path:
    """Return ``$XDG_STATE_HOME/gamebox/runs.db``, with ~/.local/state if that is not set."""
    return state_folder() / "runs.db"


@dataclass(frozen=True, slots=True)
class Logged:
    """An event as it stands in the log. ``at`` is ISO 8601; ``data`` is its JSON, longer texts by reference."""

    run: str
    id: int
    parent: str | None
    kind: str
    at: str
    data: str
    previous: str
    hash: str


class EventLog:
    """The events of many runs in the file ``path``. Many threads may use it. Every method raises SandboxError ``log_unusable``
    or ``host_disk_full`` if the file cannot be used. With ``read_only`` nothing is added or removed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> None:
        self.path = default_path() if path is None else Path(path)
        self._lock = threading.RLock()
        self._read_only = read_only
        self._database = opened(self.path, read_only=read_only)

    def close(self) -> None:
        """Close the file; may be called more than once. Everything written is then in the file itself, not only in FILE-wal."""
        with self._lock:
            if not self._read_only:
                # Closing alone does not do that while somebody reads. This does not wait for readers.
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- writing ------------------------------------------------------------------
    def begin(self, run: str | None = None, parent: str | None = None) -> RunWriter:
        """Return the writer of a new run, or of an existing one.

        Raises SandboxError: ``run_in_use`` if it already has a writer, ``invalid_configuration`` for an invalid id.
        """
        run = new_run() if run is None else run
        _check_given(run, parent)
        return RunWriter(self, run, parent)

    def append(self, run: str, events: Sequence[Event], parent: str | None = None) -> int:
        """Add events to a run, all or none, and return the id of the last. They are durable if one of them is. The run is signed,
        unless somebody else wrote events of it.

        Raises SandboxError ``log_unusable`` for an event that is too large.
        """
        _check_given(run, parent)
        key = own_key(make=True)
        prepared = [(event.kind, *self._encode(event)) for event in events]
        with self._lock, translated(self.path), writing(self._database, durable=any(e.durable for e in events)):
            last = self._database.execute(
                "SELECT id, hash, parent FROM events WHERE run = ? ORDER BY id DESC LIMIT 1", (run,)
            ).fetchone()
            ident, previous = (0, "") if last is None else last[:2]
            parent = parent if last is None else last[2]
            ours = key is not None and (last is None or self._is_signed_with(key, run, ident, previous))
            for kind, data, blobs in prepared:
                ident += 1
                at = now()
                row = (run, ident, parent, kind, at, data, previous)
                previous = hash_of(*row)
                self._add_blobs(run, blobs)
                self._database.execute(f"INSERT INTO events ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)", (*row, previous))  # noqa: S608
            if key is not None and ours and prepared:
                self._database.execute(
                    "INSERT OR REPLACE INTO signatures (run, id, signature) VALUES (?, ?, ?)",
                    (run, ident, signature_of(key, run, ident, previous)),
                )
        return int(ident)

    def is_signed(self, run: str) -> bool:
        """Return whether this user's Gamebox wrote the last event of a run. If so, and ``verify`` finds no flaw, it wrote all of
        them.
        """
        key, head = own_key(), self.head(run)
        return key is not None and head is not None and self._is_signed_with(key, run, *head)

    def _is_signed_with(self, key: bytes, run: str, ident: int, digest: str) -> bool:
        with self._lock, translated(self.path):
            if version_of(self._database) < 2:  # it is from before runs were signed, and read-only
                return False
        rows = self._rows("SELECT signature FROM signatures WHERE run = ? AND id = ?", (run, ident))
        return bool(rows) and is_signature(rows[0][0], key, run, ident, digest)

    def _encode(self, event: Event) -> tuple[str, Blobs]:
        try:
            return encode_event(event.to_data())
        except (ValueError, TypeError, RecursionError) as error:
            raise SandboxError(
                AgentErrorCode.log_unusable,
                f"An event {event.kind} cannot be stored in the event log: {error}.",
                "Make the tool or the model return less, or run without a log.",
            ) from error

    def _add_blobs(self, run: str, blobs: Blobs) -> None:
        for digest, content in blobs.items():
            self._database.execute("INSERT OR IGNORE INTO blobs (sha256, content) VALUES (?, ?)", (digest, content))
            self._database.execute("INSERT OR IGNORE INTO blob_uses (run, sha256) VALUES (?, ?)", (run, digest))

    def remove(self, run: str) -> None:
        """Remove a run and its subruns; a tombstone stays. Raises SandboxError ``run_not_found``."""
        if self.head(run) is None:
            raise not_found(run, log=self.path)
        below, waiting = [run], [run]
        while waiting:  # a log may say that a run is a subrun of itself
            new = [child for child in self.children(waiting.pop()) if child not in below]
            below, waiting = below + new, waiting + new
        for each in reversed(below):
            self._remove(each)

    def _remove(self, run: str) -> None:
        head = self.head(run)
        if head is None:
            return
        with self._lock, translated(self.path), writing(self._database, durable=True):
            do = self._database.execute
            do("INSERT OR IGNORE INTO removed (run, at, events, head) VALUES (?, ?, ?, ?)", (run, now(), *head))
            do("DELETE FROM events WHERE run = ?", (run,))
            do("DELETE FROM blob_uses WHERE run = ?", (run,))
            do("DELETE FROM signatures WHERE run = ?", (run,))
            do("DELETE FROM blobs WHERE sha256 NOT IN (SELECT sha256 FROM blob_uses)")

    # --- reading ------------------------------------------------------------------
    def head(self, run: str) -> tuple[int, str] | None:
        """Return the id and the hash of the last event of a run, or None if there is no such run."""
        found = self._rows("SELECT id, hash FROM events WHERE run = ? ORDER BY id DESC LIMIT 1", (run,))
        return None if not found else (int(found[0][0]), str(found[0][1]))

    def runs(self) -> list[str]:
        """Return the ids of all runs that are not part of another, the latest first."""
        rows = self._rows("SELECT run FROM events WHERE id = 1 AND parent IS NULL ORDER BY at DESC, run", ())
        return [str(row[0]) for row in rows]

    def every_run(self) -> list[str]:
        """Return the ids of all runs, including parts of others and runs whose first event is missing."""
        return [str(row[0]) for row in self._rows("SELECT DISTINCT run FROM events ORDER BY run", ())]

    def uses(self, run: str, digest: str) -> bool:
        """Return whether a run is noted as a user of a text; if not, the text is removed with the last run that is."""
        return bool(self._rows("SELECT 1 FROM blob_uses WHERE run = ? AND sha256 = ?", (run, digest)))

    def children(self, run: str) -> list[str]:
        """Return the ids of the subruns, in the order in which they began."""
        return [child for child, _ in self.parts(run)]

    def parts(self, run: str) -> list[tuple[str, int]]:
        """Return the same, each with the step in which it began. They are sorted by step first: a clock may go backwards.

        Raises SandboxError ``log_unusable`` for an invalid id.
        """
        rows = self._rows("SELECT run, data FROM events WHERE parent = ? AND id = 1 ORDER BY at, run", (run,))
        parts = [(checked_run(child, self.path), _step_in(data)) for child, data in rows]
        return sorted(parts, key=lambda part: part[1])

    def found(self, beginning: str) -> str:
        """Return the id that begins like this. Raises SandboxError ``run_not_found``, also if several do, and ``log_unusable``
        for an invalid id.
        """
        if beginning in ("", "last"):
            newest = self.runs()
            if beginning and newest:
                return checked_run(newest[0], self.path)
            raise not_found(beginning, log=self.path, empty=not newest)
        pattern = beginning.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
        rows = self._rows("SELECT run FROM events WHERE id = 1 AND run LIKE ? ESCAPE '!' LIMIT 3", (pattern,))
        exact = [row[0] for row in rows if row[0] == beginning]
        if not exact and len(rows) != 1:
            raise not_found(beginning, [str(row[0]) for row in rows], log=self.path, empty=not self.runs())
        return checked_run((exact or rows[0])[0], self.path)

    def logged(self, run: str, after: int = 0) -> Iterator[Logged]:
        """Return the events of a run as they are stored, in order, beginning after the event ``after``."""
        while rows := self._rows(
            f"SELECT {_COLUMNS} FROM events WHERE run = ? AND id > ? ORDER BY id LIMIT 500",  # noqa: S608
            (run, after),
        ):
            for row in rows:
                yield Logged(*row)
            after = rows[-1][1]

    def events(self, run: str, after: int = 0) -> Iterator[tuple[Logged, Event]]:
        """Do the same as ``logged``, with the event values. Raises SandboxError ``log_unusable`` for an event that cannot be
        read.
        """
        for logged in self.logged(run, after):
            try:
                yield logged, event_of(logged.kind, self.data(logged))
            except (ValueError, KeyError, RecursionError) as error:
                raise SandboxError(
                    AgentErrorCode.log_unusable,
                    f"Event {logged.id} of the run {run} cannot be read: {error}.",
                    f"See what was changed: gamebox runs verify {run}.",
                ) from error

    def data(self, logged: Logged) -> dict[str, Any]:
        """Return the data of an event with its texts. Raises ValueError or KeyError if it was changed."""
        return decode_event(logged.data, self.blob)

    def blob(self, digest: str) -> bytes:
        """Return a text that is stored beside the events. Raises KeyError."""
        rows = self._rows("SELECT content FROM blobs WHERE sha256 = ?", (digest,))
        if not rows:
            raise KeyError(f"the text {digest[:12]} is missing")
        return bytes(rows[0][0]) if not isinstance(rows[0][0], str) else rows[0][0].encode()

    def removed(self, run: str) -> Mapping[str, Any] | None:
        """Return the tombstone of a run (``at``, ``events``, ``head``), or None if it was not removed."""
        rows = self._rows("SELECT at, events, head FROM removed WHERE run = ?", (run,))
        return dict(zip(("at", "events", "head"), rows[0], strict=True)) if rows else None

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock, translated(self.path):
            return self._database.execute(query, values).fetchall()

    # --- the folder beside ------------------------------------------------------------------
    def folder(self, run: str) -> Path:
        """Return the folder for files of a run, which only its owner can read. It is made if it is missing; ``remove`` leaves it.

        Raises SandboxError ``log_unusable`` if it, or something in it, is a link.
        """
        with translated(self.path):
            while True:
                try:
                    with opened_folder(self.path, run):
                        return self.path.with_name(f"{self.path.name}.files") / run
                except FileNotFoundError:
                    continue  # a writer that released the run has just removed the folder

    def is_written(self, run: str) -> bool:
        """Return whether a living process is writing this run."""
        try:
            with opened_folder(self.path, run, make=False) as folder:
                descriptor = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except (OSError, SandboxError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


class RunWriter:
    """Adds to one run, and locks it: no other process can write it, until this one closes it or dies."""

    def __init__(self, log: EventLog, run: str, parent: str | None = None) -> None:
        self.log, self.run, self.parent = log, run, parent
        with translated(log.path):
            self._held = self._taken()

    def _taken(self) -> int:
        while True:
            try:
                with opened_folder(self.log.path, self.run) as folder:
                    held = os.open(
                        LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder
                    )
                    if self._has_locked(held, folder):
                        return held
            except FileNotFoundError:
                continue  # a writer that released the run has just removed the folder
            os.close(held)  # the file was removed before it was locked: another process could lock a new one

    def _has_locked(self, held: int, folder: int) -> bool:
        """Lock the open file, and return whether it is still in the folder. Raises SandboxError ``run_in_use``."""
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _is_in(held, folder)
        except BlockingIOError:
            os.close(held)
            raise SandboxError(
                AgentErrorCode.run_in_use,
                f"Another process is writing the run {self.run}.",
                "Wait for it, or end that process.",
            ) from None

    def append(self, *events: Event) -> int:
        """See ``EventLog.append``. Raises SandboxError ``log_unusable`` once the writer is closed: the record is complete then."""
        if self._held < 0:
            raise SandboxError(
                AgentErrorCode.log_unusable,
                f"The record of the run {self.run} is closed: nothing can be added to it.",
                "Record the next task as a run of its own.",
            )
        return self.log.append(self.run, events, self.parent)

    def forget(self) -> None:
        """Remove the files of this run and its subruns, which will not be resumed. The run stays locked."""
        parts = self.log.children(self.run)
        with translated(self.log.path), opened_folder(self.log.path, self.run) as folder:
            empty(folder)
        for part in parts:
            try:
                with RunWriter(self.log, part) as writer:
                    writer.forget()
            except SandboxError as error:
                if error.code is not AgentErrorCode.run_in_use:
                    raise

    def close(self) -> None:
        """Release the run, and remove its folder if that is empty. May be called more than once."""
        held, self._held = self._held, -1
        if held < 0:
            return
        try:
            with opened_folder(self.log.path, self.run, make=False) as folder:
                if _is_in(held, folder) and os.listdir(folder) == [LOCK]:  # noqa: PTH208 - of a descriptor
                    os.unlink(LOCK, dir_fd=folder)  # while it is held: see _taken
                    self.log.path.with_name(f"{self.log.path.name}.files").joinpath(self.run).rmdir()
        except (OSError, SandboxError):
            pass  # another process is about to lock it, or it is no longer ours
        finally:
            os.close(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_in(descriptor: int, folder: int) -> bool:
    """Return whether the lock in the folder is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(LOCK, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _check_given(run: str, parent: str | None) -> None:
    """Raise SandboxError ``invalid_configuration`` for an invalid id."""
    wrong = next((each for each in (run, parent) if each is not None and not is_run_id(each)), None)
    if wrong is not None:
        raise SandboxError(
            ErrorCode.invalid_configuration, f"{wrong!r:.120} cannot be the id of a run.", f"An id consists of {RULES['run']}."
        )


def existing(path: Path | None, *, read_only: bool = False) -> EventLog:
    """Open the log at ``path``, or the default one, which must exist. Raises SandboxError ``log_unusable``."""
    path = path or default_path()
    if not path.exists():
        raise SandboxError(
            AgentErrorCode.log_unusable,
            f"There is no event log {path}.",
            "gamebox agent creates it with the first run that it records. Name another with --log FILE.",
        )
    return EventLog(path, read_only=read_only)


def new_run() -> str:
    """Return a new id: the time in UTC, and random characters."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _step_in(data: str) -> int:
    """Return the step in the data of a first event; 0 if somebody has changed that."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return 0
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) else 0


def not_found(run: str, several: Sequence[str] = (), *, log: Path, empty: bool = False) -> SandboxError:
    """Return the error for a run that is not in the log, or may be any of ``several``."""
    there = "gamebox runs ls" if log == default_path() else f"gamebox runs ls --log {shlex.quote(str(log))}"
    if several:
        message = f"The run {run[:80]!r} could be any of {', '.join(several)}{' ...' if len(several) > 2 else ''}."
        return SandboxError(AgentErrorCode.run_not_found, message, f"Give more of its id. List the runs with: {there}.")
    if empty:
        hint = "gamebox agent records its runs there, unless --no-log is given. Name another log with --log FILE."
        return SandboxError(AgentErrorCode.run_not_found, f"No run is recorded in the log {log}.", hint)
    message = f"There is no run {run[:80]!r} in the log {log}."
    return SandboxError(AgentErrorCode.run_not_found, message, f"List the runs with: {there}.")
