"""The sandboxes in the store, and the events of what becomes of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Literal

from sandbox.frozen import dataclass

# A sandbox is ``lost`` if it ended without being asked to, and ``ended`` if its time was over; both are listed for a day.
State = Literal["creating", "running", "paused", "deleting", "ended", "lost"]
OVER: tuple[State, ...] = ("ended", "lost")
# Of a tenant, which makes one with each change of a sandbox.
MOST_EVENTS = 100_000
_JSON = ("metadata", "description", "spec", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """One sandbox of a tenant. ``ident`` is the name of its container; times are seconds since the epoch.

    ``reason`` is why it ended, in one word, and ``post_mortem`` in words. ``gone_at`` is when it was certain that nothing of it
    is left.
    ``spec`` is what ``SandboxSpec.to_data`` returned, ``options`` what was asked for besides, and ``sealed`` the
    values of variables and secrets, encrypted.
    """

    id: str
    tenant: str
    ident: str
    state: State
    created_at: float
    ends_at: float
    time_to_live_seconds: float
    reason: str | None = None
    post_mortem: str | None = None
    gone_at: float | None = None
    ended_at: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    description: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sealed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a sandbox, as ``data`` for those who watch; ``id`` grows by one with each event of the tenant."""

    id: int
    tenant: str
    sandbox: str
    data: Mapping[str, Any]


def stopped_at(options: Mapping[str, Any]) -> str | None:
    """Return the snapshot from which a sandbox with these options starts again, None if it is not stopped.

    One that is stopped counts as paused, but has no container.
    """
    found = options.get("stopped")
    return found if isinstance(found, str) else None


def insert(connection: sqlite3.Connection, record: SandboxRecord) -> None:
    """Add a sandbox."""
    row = _row(record)
    names = ", ".join(row)
    connection.execute(f"INSERT INTO sandboxes ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))  # noqa: S608


def update(connection: sqlite3.Connection, record: SandboxRecord) -> None:
    """Replace what is known of a sandbox; one that was deleted stays so."""
    row = _row(record)
    places = ", ".join(f"{name} = ?" for name in row)
    connection.execute(f"UPDATE sandboxes SET {places} WHERE id = ?", (*row.values(), record.id))  # noqa: S608


def change(connection: sqlite3.Connection, record: SandboxRecord, at: float) -> Event:
    """Replace what is known of a sandbox, and return the event of it for those who watch."""
    update(connection, record)
    data = {"sandbox_id": record.id, "state": record.state, "reason": record.reason}
    return add_event(connection, record.tenant, record.id, at, data)


def delete(connection: sqlite3.Connection, ident: str) -> None:
    """Forget a sandbox and its requests."""
    connection.execute("DELETE FROM sandboxes WHERE id = ?", (ident,))


def every(connection: sqlite3.Connection) -> list[SandboxRecord]:
    """Return all sandboxes, the oldest first."""
    found = connection.execute("SELECT * FROM sandboxes ORDER BY created_at, id")
    return [_record(row) for row in found]


def add_event(connection: sqlite3.Connection, tenant: str, sandbox: str, at: float, data: Mapping[str, Any]) -> Event:
    """Write down what became of a sandbox. Numbers are the tenant's own: gaps would tell of what others do."""
    counted = connection.execute("UPDATE tenants SET events = events + 1 WHERE id = ? RETURNING events", (tenant,))
    row = counted.fetchone()
    number = 0 if row is None else int(row[0])  # nobody can ask for those of a tenant that is gone
    connection.execute(
        "INSERT INTO events (tenant, sandbox, at, data, number) VALUES (?, ?, ?, ?, ?)",
        (tenant, sandbox, at, json.dumps(data), number),
    )
    return Event(number, tenant, sandbox, data)


def events_after(
    connection: sqlite3.Connection, tenant: str, sandbox: str | None, after: int, most: int
) -> list[Event] | None:
    """Return the events of a tenant, or of one sandbox, after the one with that id; None if some of them were forgotten."""
    oldest = connection.execute("SELECT min(number) FROM events WHERE tenant = ?", (tenant,)).fetchone()[0]
    last = last_event(connection, tenant)
    if after > last or (after < last and (oldest is None or after < oldest - 1)):
        return None
    rows = connection.execute(
        "SELECT * FROM events WHERE tenant = ? AND number > ? AND (? IS NULL OR sandbox = ?) ORDER BY number LIMIT ?",
        (tenant, after, sandbox, sandbox, most),
    )
    return [Event(row["number"], row["tenant"], row["sandbox"], json.loads(row["data"])) for row in rows]


def last_event(connection: sqlite3.Connection, tenant: str) -> int:
    """Return the id of the last event of a tenant; 0 if there was none."""
    found = connection.execute("SELECT events FROM tenants WHERE id = ?", (tenant,)).fetchone()
    return 0 if found is None else int(found[0])


def forget_events(connection: sqlite3.Connection, before: float, most: int = MOST_EVENTS) -> None:
    """Forget the events from before that time, and all but the last ``most`` of each tenant."""
    connection.execute("DELETE FROM events WHERE at < ?", (before,))
    for tenant, last in connection.execute("SELECT id, events FROM tenants").fetchall():
        connection.execute("DELETE FROM events WHERE tenant = ? AND number <= ?", (tenant, last - most))


def _row(record: SandboxRecord) -> dict[str, Any]:
    row = asdict(record)
    return {name: json.dumps(value) if name in _JSON else value for name, value in row.items()}


def _record(row: sqlite3.Row) -> SandboxRecord:
    fields = {name: json.loads(row[name]) if name in _JSON else row[name] for name in row.keys()}  # noqa: SIM118
    return SandboxRecord(**fields)
