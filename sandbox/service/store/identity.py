"""What tells the containers of one service from those of another on the same engine."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def service_id(connection: sqlite3.Connection) -> str:
    """Return the id of the service, which its store has from its first start on; a backup has the same."""
    return str(connection.execute("SELECT id FROM service").fetchone()[0])


def known_service_id(store: Path) -> str | None:
    """Return the id in a store, of whatever version, which is only looked at; None if it has none, or cannot be read."""
    if not store.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return service_id(connection)
    except (sqlite3.Error, TypeError):
        return None


def note_clock(connection: sqlite3.Connection, boot: str, offset: float) -> float | None:
    """Note how far the clock on the wall is from that since boot; return what was noted last, None if that was before this boot."""
    row = connection.execute("SELECT boot, clock_offset FROM service").fetchone()
    connection.execute("UPDATE service SET boot = ?, clock_offset = ?", (boot, offset))
    return float(row["clock_offset"]) if row["boot"] == boot and row["clock_offset"] is not None else None
