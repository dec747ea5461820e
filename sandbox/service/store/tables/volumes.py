"""Volumes in the store: files of a tenant that several sandboxes may share."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import Literal

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRecord:
    """A volume of a tenant, which has each name once. ``ready`` is the only state in which it may be used."""

    id: str
    tenant: str
    name: str
    created_at: float
    state: Literal["creating", "ready", "deleting"] = "creating"


def insert(connection: sqlite3.Connection, record: VolumeRecord) -> None:
    """Add a volume. Raises sqlite3.IntegrityError if the tenant has one of that name."""
    row = asdict(record)
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO volumes ({', '.join(row)}) VALUES ({places})", tuple(row.values()))  # noqa: S608


def set_state(connection: sqlite3.Connection, ident: str, state: str) -> None:
    """Note what becomes of a volume."""
    connection.execute("UPDATE volumes SET state = ? WHERE id = ?", (state, ident))


def delete(connection: sqlite3.Connection, ident: str) -> None:
    """Forget a volume that is gone."""
    connection.execute("DELETE FROM volumes WHERE id = ?", (ident,))


def every(connection: sqlite3.Connection) -> list[VolumeRecord]:
    """Return all volumes, the latest first."""
    return [VolumeRecord(**row) for row in connection.execute("SELECT * FROM volumes ORDER BY created_at DESC, id")]
