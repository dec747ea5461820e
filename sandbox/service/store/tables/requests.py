"""The requests to sandboxes, and the creations that may be asked for again, in the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A request that was written down before it was sent; ``digest`` is that of its operation and arguments."""

    id: str
    operation: str
    digest: bytes
    sent_at: float
    answered_at: float | None


@dataclass(frozen=True, slots=True)
class Creation:
    """A sandbox that was asked for with an idempotency key; ``answer`` is None until it runs."""

    digest: bytes
    sandbox: str
    answer: Mapping[str, Any] | None


def begin(
    connection: sqlite3.Connection, sandbox: str, ident: str, operation: str, digest: bytes, at: float
) -> KnownRequest | None:
    """Write down a request that is about to be sent; return the first one with that id, if there is one."""
    made = connection.execute(
        "INSERT INTO requests (sandbox, id, operation, digest, sent_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (sandbox, ident, operation, digest, at),
    )
    if made.rowcount:
        return None
    return _known(connection.execute("SELECT * FROM requests WHERE sandbox = ? AND id = ?", (sandbox, ident)).fetchone())


def answered(connection: sqlite3.Connection, sandbox: str, ident: str, at: float) -> None:
    """Note that a request was answered."""
    connection.execute("UPDATE requests SET answered_at = ? WHERE sandbox = ? AND id = ?", (at, sandbox, ident))


def of_sandbox(connection: sqlite3.Connection, sandbox: str, *, most: int) -> list[KnownRequest]:
    """Return the last requests to a sandbox, the latest first."""
    rows = connection.execute(
        "SELECT * FROM requests WHERE sandbox = ? ORDER BY sent_at DESC LIMIT ?", (sandbox, most)
    )
    return [_known(row) for row in rows]


def forget(connection: sqlite3.Connection, sandbox: str, before: float, answered_before: float, piece: int) -> int:
    """Forget requests to a sandbox from before that time, and those that were answered before the other.

    Forgets up to ``piece`` of them at once, and returns how many.
    """
    old = "SELECT id FROM requests WHERE sandbox = ? AND (sent_at < ? OR answered_at < ?) LIMIT ?"
    return connection.execute(
        f"DELETE FROM requests WHERE sandbox = ? AND id IN ({old})",  # noqa: S608
        (sandbox, sandbox, before, answered_before, piece),
    ).rowcount


def forget_creations(connection: sqlite3.Connection, before: float) -> None:
    """Forget creations from before that time."""
    connection.execute("DELETE FROM creations WHERE created_at < ?", (before,))


def creation(connection: sqlite3.Connection, tenant: str, key: str) -> Creation | None:
    """Return the first creation with an idempotency key, if there is one."""
    row = connection.execute("SELECT * FROM creations WHERE tenant = ? AND key = ?", (tenant, key)).fetchone()
    if row is None:
        return None
    return Creation(row["digest"], row["sandbox"], None if row["answer"] is None else json.loads(row["answer"]))


def begin_creation(
    connection: sqlite3.Connection, tenant: str, key: str, digest: bytes, sandbox: str, at: float
) -> Creation | None:
    """Write down that ``sandbox`` is created for an idempotency key; return the first creation, if there is one."""
    if (found := creation(connection, tenant, key)) is not None:
        return found
    connection.execute(
        "INSERT INTO creations (tenant, key, digest, sandbox, created_at) VALUES (?, ?, ?, ?, ?)",
        (tenant, key, digest, sandbox, at),
    )
    return None


def finish_creation(connection: sqlite3.Connection, sandbox: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer for those who ask again with the same key."""
    connection.execute("UPDATE creations SET answer = ? WHERE sandbox = ?", (json.dumps(answer), sandbox))


def undo_creation(connection: sqlite3.Connection, sandbox: str) -> None:
    """Forget a creation that failed: who asks again, tries again."""
    connection.execute("DELETE FROM creations WHERE sandbox = ? AND answer IS NULL", (sandbox,))


def _known(row: sqlite3.Row) -> KnownRequest:
    return KnownRequest(row["id"], row["operation"], row["digest"], row["sent_at"], row["answered_at"])
