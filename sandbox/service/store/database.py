"""The store's file and the one thread that works on it: calls that come together are written together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sandbox.client.http.codes import ProblemCode
from sandbox.errors import ErrorCode, SandboxError

from .identity import service_id
from .migrations import migrate
from .sealing import Seal, open_seal

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = Callable[[sqlite3.Connection], T]
Job = tuple[Call[Any], asyncio.Future[Any] | None, asyncio.AbstractEventLoop | None]

STORE = "service.db"
# Calls that are written in one transaction: more of them keep the first one waiting.
MOST_TOGETHER = 64
# How long what nobody waits for may wait for more of its kind.
NOTE_SECONDS = 0.05
# Another process that has the file open, such as a backup, is waited for.
BUSY_SECONDS = 5.0
# What a call did wrong, and no others of its transaction.
_OF_CALLS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


class Database:
    """The store. What ``call`` has answered survives a kill of this process at any moment."""

    def __init__(self, path: Path) -> None:
        self.on_error: Callable[[], None] = lambda: None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._notes: deque[Call[Any]] = deque()
        self._failing = False
        self._connection = opened(path)
        self.seal = _seal_of(path, self._connection)
        self.service_id = service_id(self._connection)
        self._thread = threading.Thread(target=self._work, name="gamebox-store", daemon=True)
        self._thread.start()

    def call(self, call: Call[T]) -> asyncio.Future[T]:
        """Have the store's thread call ``call(connection)`` in a transaction; the answer comes when that is written.

        What the call raises is raised, and what it did is undone; others of the same transaction do not notice.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((call, future, loop))
        return future

    def note(self, call: Call[Any]) -> None:
        """Have ``call(connection)`` called some time, without waiting for it: a kill may lose it."""
        self._notes.append(call)
        if len(self._notes) == 1:  # several wake the thread once
            asyncio.get_running_loop().call_later(NOTE_SECONDS, self._hand_over)

    def _hand_over(self) -> None:
        while self._notes:
            self._jobs.put((self._notes.popleft(), None, None))

    def close(self) -> None:
        """Carry out what was asked for and close the file; may be called more than once."""
        if self._thread.is_alive():
            self._hand_over()
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while True:
            jobs, ended = self._taken()
            self._carry_out(jobs)
            if ended:
                self._connection.close()
                return

    def _taken(self) -> tuple[list[Job], bool]:
        """Return the calls that wait, at least one, and whether the store is to be closed after them."""
        jobs: list[Job] = []
        job = self._jobs.get()
        while job is not None and len(jobs) < MOST_TOGETHER:
            jobs.append(job)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        if job is not None:
            jobs.append(job)
        return jobs, job is None

    def _carry_out(self, jobs: list[Job]) -> None:
        answers: list[tuple[Any, BaseException | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            answers = [self._called(call) for call, _, _ in jobs]
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self._note_error(error)
            answers = [(None, _unusable(error))] * len(jobs)
        else:
            self._failing = False
        for (_, future, loop), (result, problem) in zip(jobs, answers, strict=True):
            if future is not None and loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle, future, result, problem)

    def _note_error(self, error: sqlite3.Error) -> None:
        """Count a transaction that failed, and log the first of several."""
        self.on_error()
        if not self._failing:
            log.error("the store cannot be written: %s", error)
        self._failing = True

    def _called(self, call: Call[Any]) -> tuple[Any, BaseException | None]:
        self._connection.execute("SAVEPOINT one")
        try:
            result = call(self._connection)
        except sqlite3.Error as error:
            if not isinstance(error, _OF_CALLS):  # a full disk: it may have undone the whole transaction
                raise
            self._connection.execute("ROLLBACK TO one")
            return None, error
        except Exception as error:  # noqa: BLE001  # raised where it was asked for
            self._connection.execute("ROLLBACK TO one")
            return None, error
        finally:
            self._connection.execute("RELEASE one")
        return result, None


def _settle(future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if future.done():  # its task was cancelled
        return
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)


def opened(path: Path) -> sqlite3.Connection:
    """Return a connection to a store, brought to the last version. Raises SandboxError for one that cannot be used."""
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            # A kill of this process loses nothing; a power cut may lose the last second, and every sandbox with it.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise ValueError(f"it is damaged ({found})")
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, ValueError, OSError) as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The store {path} cannot be used: {error}.",
            "Restore a backup: gamebox serve restore FILE. Or move the store away: the service then no longer knows its running "
            "sandboxes; list them with `gamebox ls`, and remove them with `gamebox rm --force`.",
        ) from error
    return connection


def _seal_of(path: Path, connection: sqlite3.Connection) -> Seal:
    try:
        return open_seal(path.parent, connection, settle=True)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise _unusable(error) from error
        raise


def _unusable(error: sqlite3.Error) -> SandboxError:
    return SandboxError(
        ProblemCode.store_unavailable,
        f"The service cannot write to its store: {error}.",
        "Send the request again later; the operator finds the cause in the log of the service.",
        retryable=True,
    )
