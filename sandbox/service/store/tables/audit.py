"""Who did what, in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action that was asked for. ``key`` is the id of a key; ``tenant`` and ``key`` are "" if the request had no valid key.

    ``at`` is seconds since the epoch, ``status`` that of HTTP, ``outcome`` "ok" or a code.
    """

    at: float
    tenant: str
    key: str
    address: str
    action: str
    target: str
    status: int
    outcome: str
    request: str


COLUMNS = tuple(each.name for each in fields(AuditEntry))
# What a reader may ask for.
FILTERS = ("tenant", "key", "action", "target", "outcome")


def insert(connection: sqlite3.Connection, entries: Iterable[AuditEntry]) -> None:
    """Add entries, each with the next number of its tenant."""
    last: dict[str, int] = {}
    rows = []
    for each in entries:
        if each.tenant not in last:
            found = connection.execute("SELECT last FROM audit_numbers WHERE tenant = ?", (each.tenant,)).fetchone()
            last[each.tenant] = 0 if found is None else found["last"]
        last[each.tenant] += 1
        rows.append((*astuple(each), last[each.tenant]))
    connection.executemany(
        f"INSERT INTO audit ({', '.join(COLUMNS)}, number) VALUES ({', '.join('?' * len(COLUMNS))}, ?)",  # noqa: S608
        rows,
    )
    connection.executemany("INSERT OR REPLACE INTO audit_numbers VALUES (?, ?)", last.items())


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that was found: its number among those of its tenant, and its place among those that were asked for."""

    number: int
    place: int
    entry: AuditEntry


def page(connection: sqlite3.Connection, wanted: Mapping[str, str], before: int | None, most: int) -> list[Found]:
    """Return entries with the ``wanted`` values of FILTERS and a place below ``before``, the latest first.

    The place of an entry of one ``tenant`` is its number, so that it says nothing of other tenants.
    """
    place = "number" if "tenant" in wanted else "id"
    names = [name for name in FILTERS if name in wanted]
    where = " AND ".join([f"{place} < ?", *(f"{name} = ?" for name in names)])
    rows = connection.execute(
        f"SELECT * FROM audit WHERE {where} ORDER BY {place} DESC LIMIT ?",  # noqa: S608
        (1 << 62 if before is None else before, *(wanted[name] for name in names), most),
    )
    return [Found(row["number"], row[place], AuditEntry(**{name: row[name] for name in COLUMNS})) for row in rows]


def forget(connection: sqlite3.Connection, before: float, most: int, piece: int) -> int:
    """Forget entries from before that time, and all but the last ``most`` of each tenant: one cannot push out those of others.

    Forgets up to ``piece`` entries at once, and returns how many.
    """
    gone = connection.execute(
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? LIMIT ?)", (before, piece)
    ).rowcount
    for tenant, last in connection.execute("SELECT tenant, last FROM audit_numbers").fetchall():
        gone += connection.execute(
            "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE tenant = ? AND number <= ? LIMIT ?)",
            (tenant, last - most, piece - gone),
        ).rowcount
    return gone
