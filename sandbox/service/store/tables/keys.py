"""Tenants and their keys in the store. A key itself is never written down, only its digest."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import Any

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key of a tenant. ``shown`` is enough of it to recognize it; times are seconds since the epoch."""

    id: str
    tenant: str
    name: str
    scope: str
    digest: bytes
    shown: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


def insert(connection: sqlite3.Connection, record: KeyRecord) -> None:
    """Add a key, and its tenant if that is new."""
    connection.execute("INSERT OR IGNORE INTO tenants (id, created_at) VALUES (?, ?)", (record.tenant, record.created_at))
    row: dict[str, Any] = asdict(record)
    connection.execute(
        f"INSERT INTO keys ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",  # noqa: S608
        tuple(row.values()),
    )


def every(connection: sqlite3.Connection) -> list[KeyRecord]:
    """Return all keys, the oldest first; those that were revoked as well."""
    rows = connection.execute("SELECT * FROM keys ORDER BY created_at, id")
    return [KeyRecord(**dict(row)) for row in rows]


def revoke(connection: sqlite3.Connection, ident: str, at: float) -> None:
    """Revoke a key."""
    connection.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (at, ident))
