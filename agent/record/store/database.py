"""The file of an event log: opened safely, migrated to this version, with errors as SandboxError."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode, SandboxError

# "GBXL": distinguishes the file from databases of other programs.
APPLICATION_ID = 0x4742584C
# Step N migrates a database from version N to N + 1; schema.sql makes version 1 in an empty file. A step that was released is never
# changed. A new file goes through all of them.
STEPS: tuple[str, ...] = ("schema.sql", "signatures.sql")
# How long a writer waits for another process.
BUSY_SECONDS = 30.0
# How long a journal may exist while another process makes the log; after that a log has none.
_JOURNAL_SECONDS = 1.0
# Python handles signals after so many instructions of SQLite, so that Ctrl-C ends a query that would not end.
_STEPS_PER_LOOK = 100_000
_ANOTHER = "Name another file with --log."


def opened(path: Path, steps: Sequence[str] = STEPS, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the database at ``path``. A missing file is made, an older version migrated by ``steps``.

    A file is changed, its mode included, only once it is known to be an event log. With ``read_only``, neither the log nor a
    FILE-wal that a killed process left is changed, and an older version is read as it is. SQLite may leave FILE-shm, an index.

    Raises SandboxError: ``log_unusable`` for a file that is not an event log, is of a newer version, cannot be read or written, has
    tables that Gamebox does not make, or has files beside it that Gamebox does not leave there; ``host_disk_full``.
    """
    with translated(path):
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        at = Path(os.path.realpath(path))  # SQLite follows links, so its other files are beside the target
        alone = _is_own_folder(at.parent)
        if not alone and not read_only:
            raise _unusable(
                path, f"lies in a folder that other users can write, {at.parent}", "Name one in a folder of your own with --log."
            )
        if not read_only:
            _make(at)
        if not stat.S_ISREG(at.stat().st_mode):
            raise _unusable(path, "cannot be opened: it is not a regular file", _ANOTHER)
        _check_beside(path, at)
        database = _connected(at, read_only=read_only) if alone else _as_it_is(path, at)
        try:
            database.text_factory = _text
            database.set_progress_handler(_look_for_signals, _STEPS_PER_LOOK)
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA foreign_keys = ON")
            with _one_look(database):  # before anything is changed: the file may be another program's
                _check(database, path, len(steps), allow_empty=not read_only)
                _check_schema(database, path, tuple(steps))
            if read_only:
                database.execute("PRAGMA query_only = ON")
                return database
            _make_private(at)
            database.execute("PRAGMA journal_mode = WAL")
            _migrate(database, path, steps)
        except BaseException:
            database.close()
            raise
        return database


def _is_own_folder(folder: Path) -> bool:
    """Return whether only this user and root can put a file into the folder between the checks and the opening."""
    found = folder.stat()
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def _check_beside(path: Path, at: Path) -> None:
    """Check the files beside a log before SQLite opens them.

    SQLite plays back a journal unasked, and then deletes any file that the journal names. A log is in WAL mode and has none.
    """
    journal = at.with_name(f"{at.name}-journal")
    until = time.monotonic() + _JOURNAL_SECONDS
    while (found := _found(journal)) is not None and not (stat.S_ISREG(found.st_mode) and found.st_size == 0):
        if not stat.S_ISREG(found.st_mode) or time.monotonic() > until:
            raise _unusable(
                path,
                f"is not opened: {journal} is beside it, which an event log does not have, and which can delete other files",
                f"If you do not know where the log comes from, do not use it. Otherwise move {journal.name} away and try again.",
            )
        time.sleep(0.02)
    for beside in (at.with_name(f"{at.name}-wal"), at.with_name(f"{at.name}-shm")):
        found = _found(beside)
        if found is not None and not (stat.S_ISREG(found.st_mode) and found.st_nlink <= 1):  # 0: it was removed just now
            raise _unusable(
                path,
                f"is not opened: {beside} is a link, or not a regular file",
                f"Gamebox did not make {beside.name}. Remove it if you know where it comes from. {_ANOTHER}",
            )


def _found(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _as_it_is(path: Path, at: Path) -> sqlite3.Connection:
    """Connect to a log in a folder where others may put files at any moment: SQLite must not open any file beside it."""
    beside = _found(at.with_name(f"{at.name}-wal"))
    if beside is not None and beside.st_size:
        raise _unusable(
            path,
            f"is in use, or was not closed, and lies in a folder that other users can write, {at.parent}",
            f"Copy it together with {at.name}-wal into a folder of your own, and name the copy with --log.",
        )
    return _immutable(at)


def _immutable(path: Path) -> sqlite3.Connection:
    place = f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"
    return sqlite3.connect(place, isolation_level=None, check_same_thread=False, uri=True)


def _look_for_signals() -> int:
    """Do nothing: Python handles signals when a function begins."""
    return 0


def _connected(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Connect to an existing file. SQLite makes two files beside it; if it may not, it reads without them.

    With ``mode=rw`` the last connection that is closed moves FILE-wal into the file, which a reader must not do. With ``mode=ro``
    SQLite leaves both files, so a reader uses that only if there is a FILE-wal already.
    """
    beside = _found(path.with_name(f"{path.name}-wal")) if read_only else None
    place = f"file:{quote(os.fsencode(path))}?mode={'ro' if beside is not None and beside.st_size else 'rw'}"
    database = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    if not read_only:
        return database
    try:
        version_of(database)
        return database
    except sqlite3.Error as error:
        database.close()
        if not isinstance(error, sqlite3.OperationalError) or path.with_name(f"{path.name}-wal").exists():
            raise  # FILE-wal has what another process wrote last
        return _immutable(path)


def version_of(database: sqlite3.Connection) -> int:
    """Return the version of the schema; 0 for an empty file."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def writing(database: sqlite3.Connection, *, durable: bool) -> Iterator[None]:
    """Run one transaction, in which no other process writes. With ``durable`` it survives a crash of the machine, else one of this
    process.
    """
    database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise errors of the file and of SQLite as SandboxError; a query that Ctrl-C ended raises KeyboardInterrupt."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error  # raised in _look_for_signals, from which SQLite passes nothing on
        raise _worded(path, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise _unusable(path, f"cannot be opened: {error.strerror or error}", f"Check its permissions. {_ANOTHER}") from error


def _make(path: Path) -> None:
    """Make the file if it is missing. An existing one is not opened: closing it would release the locks of this process."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass


def _make_private(path: Path) -> None:
    """Let only the owner read the log. SQLite gives its other two files the same mode."""
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


@contextmanager
def _one_look(database: sqlite3.Connection) -> Iterator[None]:
    """Read within one transaction: another process may be making the file at this moment."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _check(database: sqlite3.Connection, path: Path, newest: int, *, allow_empty: bool = True) -> None:
    application = int(database.execute("PRAGMA application_id").fetchone()[0])
    tables = database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise _unusable(path, "is a database of another program", _ANOTHER)
    if application != APPLICATION_ID and not allow_empty:
        raise _unusable(path, "is empty", _ANOTHER)
    version = version_of(database)
    if version > newest:
        raise _unusable(
            path,
            f"was written by a newer gamebox (log version {version}; this one supports {newest})",
            f"Use that gamebox. {_ANOTHER}",
        )


def _check_schema(database: sqlite3.Connection, path: Path, steps: tuple[str, ...]) -> None:
    """Refuse what Gamebox did not make: views, virtual tables and triggers would be somebody else's code."""
    expected = _schema_of(steps[: max(version_of(database), 0)])
    for row in database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        if row not in expected:
            raise _unusable(
                path, f"is not opened: Gamebox did not make the {row[0]!s:.20} {row[1]!r:.80} in it", f"Do not use it. {_ANOTHER}"
            )


@lru_cache
def _schema_of(steps: tuple[str, ...]) -> frozenset[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        _take(database, steps)
        return frozenset(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _take(database: sqlite3.Connection, steps: Sequence[str]) -> None:
    for step in steps:
        for statement in _statements(files(__package__).joinpath(step).read_text(encoding="utf-8")):
            database.execute(statement)


def _migrate(database: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    if version_of(database) == len(steps):
        return
    with writing(database, durable=True):  # another process may do the same: the second one finds it done
        _check(database, path, len(steps))
        _take(database, steps[version_of(database) :])
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {len(steps)}")


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script: ``executescript`` would end the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _text(data: bytes) -> str:
    """Decode text that may be invalid, so that verifying finds it changed instead of failing to read it."""
    return data.decode("utf-8", "surrogateescape")


def _worded(path: Path, error: sqlite3.Error) -> SandboxError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return _full(path)
    if code == sqlite3.SQLITE_NOTADB:
        return _unusable(path, "is not an event log", _ANOTHER)
    if code == sqlite3.SQLITE_CORRUPT:
        return _unusable(path, "is damaged", "Move it away, or name another file with --log.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _unusable(path, f"was in use by another process for {BUSY_SECONDS:g} s", f"Try again. {_ANOTHER}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return _unusable(path, f"cannot be opened or written ({error})", f"Check its permissions. {_ANOTHER}")
    return _unusable(path, f"cannot be used: {error}", f"Check the disk it is on. {_ANOTHER}")


def _has_no_room(path: Path) -> bool:
    """Return whether the disk is full: SQLite does not report that for its other two files."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < (64 << 10)


def _full(path: Path) -> SandboxError:
    return SandboxError(
        ErrorCode.host_disk_full,
        f"There is no room left for the event log {path}.",
        "Free some space there, remove old runs with gamebox runs rm, or name another file with --log.",
    )


def _unusable(path: Path, why: str, hint: str) -> SandboxError:
    return SandboxError(AgentErrorCode.log_unusable, f"The event log {path} {why}.", hint)
