"""Tenants in the store, with what the operator has set for them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """A tenant. ``ceiling`` and ``quota`` have what differs from the service's settings; times are seconds since the epoch.

    ``transferred`` are the bytes that had not leaked out of its quota at ``transferred_at``.
    """

    id: str
    created_at: float
    name: str = ""
    deleting_at: float | None = None
    ceiling: Mapping[str, Any] = field(default_factory=dict)
    quota: Mapping[str, Any] = field(default_factory=dict)
    transferred: float = 0.0
    transferred_at: float = 0.0


def insert(connection: sqlite3.Connection, record: TenantRecord) -> None:
    """Add a tenant. Raises sqlite3.IntegrityError if it is there."""
    connection.execute(
        "INSERT INTO tenants (id, created_at, name, ceiling, quota) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.created_at, record.name, json.dumps(record.ceiling), json.dumps(record.quota)),
    )


def update(connection: sqlite3.Connection, record: TenantRecord) -> None:
    """Replace what is set for a tenant."""
    connection.execute(
        "UPDATE tenants SET name = ?, deleting_at = ?, ceiling = ?, quota = ? WHERE id = ?",
        (record.name, record.deleting_at, json.dumps(record.ceiling), json.dumps(record.quota), record.id),
    )


def note_transferred(connection: sqlite3.Connection, tenant: str, transferred: float, at: float) -> None:
    """Write down what a tenant has used of its transfers."""
    connection.execute("UPDATE tenants SET transferred = ?, transferred_at = ? WHERE id = ?", (transferred, at, tenant))


def delete(connection: sqlite3.Connection, ident: str) -> None:
    """Forget a tenant whose sandboxes are forgotten already, with its keys, events, creations and templates."""
    for table in ("keys", "events", "creations", "secrets", "snapshots", "volumes", "templates"):
        connection.execute(f"DELETE FROM {table} WHERE tenant = ?", (ident,))  # noqa: S608
    connection.execute("DELETE FROM tenants WHERE id = ?", (ident,))


def every(connection: sqlite3.Connection) -> list[TenantRecord]:
    """Return all tenants, the oldest first."""
    names = ", ".join(each.name for each in fields(TenantRecord))
    return [_record(row) for row in connection.execute(f"SELECT {names} FROM tenants ORDER BY created_at, id")]  # noqa: S608


def _record(row: sqlite3.Row) -> TenantRecord:
    found = {name: row[name] for name in row.keys()}  # noqa: SIM118
    return TenantRecord(**{**found, "ceiling": json.loads(row["ceiling"]), "quota": json.loads(row["quota"])})
