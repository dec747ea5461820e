"""The secrets of tenants in the store: names in the clear, values sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """What is shown of a secret; times are seconds since the epoch, and ``version`` counts its values."""

    name: str
    created_at: float
    updated_at: float
    version: int


def put(
    connection: sqlite3.Connection, tenant: str, name: str, sealed: bytes, at: float, most: int
) -> SecretRecord | None:
    """Add a secret, or replace its value; return None, without a change, if the tenant has ``most`` others."""
    found = connection.execute("SELECT * FROM secrets WHERE tenant = ? AND name = ?", (tenant, name)).fetchone()
    if found is not None:
        record = SecretRecord(name, found["created_at"], at, found["version"] + 1)
        connection.execute(
            "UPDATE secrets SET sealed = ?, updated_at = ?, version = ? WHERE tenant = ? AND name = ?",
            (sealed, at, record.version, tenant, name),
        )
        return record
    count = connection.execute("SELECT count(*) FROM secrets WHERE tenant = ?", (tenant,)).fetchone()[0]
    if count >= most:
        return None
    connection.execute("INSERT INTO secrets VALUES (?, ?, ?, ?, ?, 1)", (tenant, name, sealed, at, at))
    return SecretRecord(name, at, at, 1)


def of_tenant(connection: sqlite3.Connection, tenant: str) -> list[SecretRecord]:
    """Return the secrets of a tenant by name, without values."""
    rows = connection.execute(
        "SELECT name, created_at, updated_at, version FROM secrets WHERE tenant = ? ORDER BY name", (tenant,)
    )
    return [SecretRecord(*row) for row in rows]


def sealed_values(connection: sqlite3.Connection, tenant: str, names: Collection[str]) -> dict[str, bytes]:
    """Return the sealed values of those of the names that the tenant has."""
    wanted = list(names)
    marks = ", ".join("?" * len(wanted))
    rows = connection.execute(
        f"SELECT name, sealed FROM secrets WHERE tenant = ? AND name IN ({marks})",  # noqa: S608
        (tenant, *wanted),
    )
    return {row["name"]: row["sealed"] for row in rows}


def delete(connection: sqlite3.Connection, tenant: str, name: str) -> bool:
    """Forget a secret; return whether there was one."""
    return connection.execute("DELETE FROM secrets WHERE tenant = ? AND name = ?", (tenant, name)).rowcount > 0
