"""The sandboxes that stand by in the pools, by the names of their containers: written down before these are made.

Each name is in this table or in that of the sandboxes, never in both: one transaction hands a member out.
"""

from __future__ import annotations

import sqlite3


def insert(connection: sqlite3.Connection, ident: str) -> None:
    """Add a member that is about to be made."""
    connection.execute("INSERT INTO members (ident) VALUES (?)", (ident,))


def delete(connection: sqlite3.Connection, ident: str) -> None:
    """Forget a member: it is gone, or somebody's sandbox from now on."""
    connection.execute("DELETE FROM members WHERE ident = ?", (ident,))


def every(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all members."""
    return [str(row["ident"]) for row in connection.execute("SELECT ident FROM members ORDER BY ident")]
