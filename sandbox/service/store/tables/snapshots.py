"""Snapshots in the store: files of a sandbox that outlive it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Literal

from sandbox.frozen import dataclass

# What a tenant asked for; what a stopped sandbox starts again from; and what forks are made from, which nothing else uses.
Kind = Literal["snapshot", "stop", "fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot of a tenant. ``name`` is "" or a name and a tag, as in ``app:default``, which a tenant has once.

    The files of workspace and home are in a file of the service's folder, what was changed of the rest of the system in ``image``,
    which is "" if nothing of it could be. Both together take ``bytes``. ``spec`` is that of the sandbox. One that is ``deleting``
    is not there for anybody, and goes when nothing uses it any more.
    """

    id: str
    tenant: str
    sandbox: str
    kind: Kind
    name: str
    created_at: float
    bytes: int = 0
    image: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    deleting: bool = False

    @property
    def label(self) -> str:
        """What it is called where its name and tag, or its id and tag, are one word."""
        return self.name or f"{self.id}:default"


def insert(connection: sqlite3.Connection, record: SnapshotRecord) -> None:
    """Add a snapshot; the one before it with its name is to be deleted."""
    if record.name:
        where = "tenant = ? AND name = ? AND kind = 'snapshot'"
        connection.execute(f"UPDATE snapshots SET deleting = 1 WHERE {where}", (record.tenant, record.name))  # noqa: S608
    row = {**asdict(record), "spec": json.dumps(record.spec), "deleting": int(record.deleting)}
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO snapshots ({', '.join(row)}) VALUES ({places})", tuple(row.values()))  # noqa: S608


def mark_deleting(connection: sqlite3.Connection, ident: str) -> bool:
    """Have a snapshot be deleted; return whether it was there for somebody."""
    changed = connection.execute("UPDATE snapshots SET deleting = 1 WHERE id = ? AND deleting = 0", (ident,))
    return changed.rowcount > 0


def delete(connection: sqlite3.Connection, ident: str) -> None:
    """Forget a snapshot of which nothing is left."""
    connection.execute("DELETE FROM snapshots WHERE id = ?", (ident,))


def every(connection: sqlite3.Connection) -> list[SnapshotRecord]:
    """Return all snapshots, the latest first."""
    found = connection.execute("SELECT * FROM snapshots ORDER BY created_at DESC, id DESC")
    return [_record(row) for row in found]


def _record(row: sqlite3.Row) -> SnapshotRecord:
    fields: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118
    return SnapshotRecord(**{**fields, "spec": json.loads(row["spec"]), "deleting": bool(row["deleting"])})
