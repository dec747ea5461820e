"""What tells the containers of one service from those of another on the same engine."""

from __future__ import annotations

import sqlite3


def service_id(connection: sqlite3.Connection) -> str:
    """Return the id of the service, which its store has from its first start on; a backup has the same."""
    return str(connection.execute("SELECT id FROM service").fetchone()[0])
