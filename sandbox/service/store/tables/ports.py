"""The ports of sandboxes that everybody may reach."""

from __future__ import annotations

import sqlite3


def insert(connection: sqlite3.Connection, sandbox: str, port: int) -> None:
    """Note that a port is public."""
    connection.execute("INSERT OR IGNORE INTO public_ports VALUES (?, ?)", (sandbox, port))


def delete(connection: sqlite3.Connection, sandbox: str, port: int) -> None:
    """Note that a port is private again."""
    connection.execute("DELETE FROM public_ports WHERE sandbox = ? AND port = ?", (sandbox, port))


def every(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return all public ports, with their sandboxes."""
    rows = connection.execute("SELECT sandbox, port FROM public_ports")
    return [(str(row["sandbox"]), int(row["port"])) for row in rows]
