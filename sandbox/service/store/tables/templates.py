"""Templates in the store: images that tenants have had built, with their builds and tags."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal

from sandbox.frozen import dataclass

# A build is ``waiting`` until it is started, and then ``building`` until it is one of the others.
BuildState = Literal["waiting", "building", "ready", "error"]
# Of a template; those with a tag stay, whatever comes after them.
MOST_BUILDS = 50
# Of a template: those of its builds that ended last.
MOST_LOGS = 10
_JSON = ("tags", "config", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """A template of a tenant, which has each name once. Times are seconds since the epoch."""

    id: str
    tenant: str
    name: str
    created_at: float
    updated_at: float
    used_at: float | None = None
    uses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord:
    """A build of a template. ``tags`` are those that it gets when it is ready.

    ``image`` is on the engine, and takes ``size_bytes`` more there than the one it was built on; ``config`` is what sandboxes
    are started with. ``reason`` has the sentence and the step of an error.
    """

    id: str
    template: str
    tenant: str
    state: BuildState
    created_at: float
    updated_at: float
    finished_at: float | None = None
    cpus: float
    memory_bytes: int
    tags: Sequence[str] = ()
    image: str = ""
    size_bytes: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    reason: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of a template, and the build that it names."""

    name: str
    build: str
    created_at: float


# Templates


def find(connection: sqlite3.Connection, tenant: str, name: str) -> TemplateRecord | None:
    """Return a template of a tenant by its id or its name."""
    rows = connection.execute(
        "SELECT * FROM templates WHERE tenant = ? AND (id = ? OR name = ?) ORDER BY id = ? DESC LIMIT 1", (tenant, name, name, name)
    )
    row = rows.fetchone()
    return None if row is None else TemplateRecord(**row)


def of_tenant(connection: sqlite3.Connection, tenant: str) -> list[TemplateRecord]:
    """Return the templates of a tenant, the latest first."""
    rows = connection.execute("SELECT * FROM templates WHERE tenant = ? ORDER BY created_at DESC, id", (tenant,))
    return [TemplateRecord(**row) for row in rows]


def count(connection: sqlite3.Connection, tenant: str) -> int:
    """Return how many templates a tenant has."""
    return int(connection.execute("SELECT count(*) FROM templates WHERE tenant = ?", (tenant,)).fetchone()[0])


def insert(connection: sqlite3.Connection, record: TemplateRecord) -> None:
    """Add a template."""
    names, values = zip(*asdict(record).items(), strict=True)
    connection.execute(f"INSERT INTO templates ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)  # noqa: S608


def note_use(connection: sqlite3.Connection, template: str, at: float) -> None:
    """Count that a sandbox was started from a template."""
    connection.execute("UPDATE templates SET used_at = ?, uses = uses + 1 WHERE id = ?", (at, template))


def delete(connection: sqlite3.Connection, template: str) -> None:
    """Forget a template with its builds and tags."""
    connection.execute("DELETE FROM templates WHERE id = ?", (template,))


def delete_all(connection: sqlite3.Connection, tenant: str) -> None:
    """Forget the templates of a tenant."""
    connection.execute("DELETE FROM templates WHERE tenant = ?", (tenant,))


# Builds


def insert_build(connection: sqlite3.Connection, record: BuildRecord) -> None:
    """Add a build."""
    row = _row(record)
    names = ", ".join(row)
    connection.execute(f"INSERT INTO builds ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))  # noqa: S608


def build(connection: sqlite3.Connection, tenant: str, ident: str) -> BuildRecord | None:
    """Return a build of a tenant."""
    row = connection.execute("SELECT * FROM builds WHERE tenant = ? AND id = ?", (tenant, ident)).fetchone()
    return None if row is None else _build(row)


def builds_of(connection: sqlite3.Connection, template: str) -> list[BuildRecord]:
    """Return the builds of a template, the latest first."""
    rows = connection.execute("SELECT * FROM builds WHERE template = ? ORDER BY created_at DESC, id", (template,))
    return [_build(row) for row in rows]


def change_build(connection: sqlite3.Connection, record: BuildRecord, expected: BuildState) -> bool:
    """Replace what is known of a build; return whether it was in the ``expected`` state, and its template is there."""
    row = _row(record)
    places = ", ".join(f"{name} = ?" for name in row)
    changed = connection.execute(
        f"UPDATE builds SET {places} WHERE id = ? AND state = ?",  # noqa: S608
        (*row.values(), record.id, expected),
    )
    return changed.rowcount > 0


def finish_build(connection: sqlite3.Connection, record: BuildRecord, logs: str) -> bool:
    """Write down how a build has ended, and give it its tags if it is ready; return False if its template is gone.

    A tag stays where it is if it names a build that was asked for later. The logs of its last builds are kept.
    """
    if not change_build(connection, record, "building"):
        return False
    connection.execute("INSERT OR REPLACE INTO build_logs (build, data) VALUES (?, ?)", (record.id, logs))
    connection.execute(
        "DELETE FROM build_logs WHERE build IN (SELECT id FROM builds WHERE template = ? AND finished_at IS NOT NULL"
        " ORDER BY finished_at DESC, created_at DESC LIMIT -1 OFFSET ?)",
        (record.template, MOST_LOGS),
    )
    connection.execute("UPDATE templates SET updated_at = ? WHERE id = ?", (record.updated_at, record.template))
    for tag in record.tags if record.state == "ready" else ():
        later = connection.execute(
            "SELECT 1 FROM template_tags AS tag JOIN builds ON builds.id = tag.build"
            " WHERE tag.template = ? AND tag.name = ? AND builds.created_at > ?",
            (record.template, tag, record.created_at),
        )
        if later.fetchone() is None:
            put_tag(connection, record.template, Tag(tag, record.id, record.updated_at))
    return True


def logs_of(connection: sqlite3.Connection, ident: str) -> str:
    """Return the log of a build that has ended, as it was written down; "" if there is none."""
    row = connection.execute("SELECT data FROM build_logs WHERE build = ?", (ident,)).fetchone()
    return "" if row is None else str(row["data"])


def interrupt_builds(connection: sqlite3.Connection, at: float, message: str, logs: str) -> int:
    """Note that the builds which are under way have ended with their service; return how many there were."""
    found = [_build(row) for row in connection.execute("SELECT * FROM builds WHERE state = 'building'")]
    for each in found:
        connection.execute(
            "UPDATE builds SET state = 'error', reason = ?, updated_at = ?, finished_at = ? WHERE id = ?",
            (json.dumps({"message": message}), at, at, each.id),
        )
        connection.execute("INSERT OR REPLACE INTO build_logs (build, data) VALUES (?, ?)", (each.id, logs))
    return len(found)


def used_bytes(connection: sqlite3.Connection, tenant: str) -> int:
    """Return how much the images of a tenant take."""
    query = "SELECT coalesce(sum(size_bytes), 0) FROM builds WHERE tenant = ? AND image != ''"
    return int(connection.execute(query, (tenant,)).fetchone()[0])


def images(connection: sqlite3.Connection) -> set[str]:
    """Return the images of all builds."""
    return {str(row["image"]) for row in connection.execute("SELECT image FROM builds WHERE image != ''")}


def forget_builds(connection: sqlite3.Connection, before: float, most: int = MOST_BUILDS) -> None:
    """Forget the builds that nobody has started since then, and of each template all but the last ``most``, if they have no tag.

    Those without a tag have no image either: nothing can be started from them. A template that never had a build goes, too.
    """
    connection.execute("DELETE FROM builds WHERE state = 'waiting' AND created_at < ?", (before,))
    untagged = "state IN ('ready', 'error') AND id NOT IN (SELECT build FROM template_tags)"
    connection.execute(f"UPDATE builds SET image = '', size_bytes = 0 WHERE {untagged} AND image != ''")  # noqa: S608
    connection.execute(
        f"DELETE FROM builds WHERE {untagged} AND id IN (SELECT id FROM"  # noqa: S608
        " (SELECT id, row_number() OVER (PARTITION BY template ORDER BY created_at DESC) AS place FROM builds) WHERE place > ?)",
        (most,),
    )
    connection.execute("DELETE FROM templates WHERE created_at < ? AND id NOT IN (SELECT template FROM builds)", (before,))


def limit_waiting(connection: sqlite3.Connection, tenant: str, most: int) -> None:
    """Forget all but the last ``most`` builds of a tenant that nobody has started."""
    connection.execute(
        "DELETE FROM builds WHERE id IN"
        " (SELECT id FROM builds WHERE tenant = ? AND state = 'waiting' ORDER BY created_at DESC LIMIT -1 OFFSET ?)",
        (tenant, most),
    )


# Tags


def put_tag(connection: sqlite3.Connection, template: str, tag: Tag) -> None:
    """Have a tag name a build."""
    connection.execute(
        "INSERT OR REPLACE INTO template_tags (template, name, build, created_at) VALUES (?, ?, ?, ?)",
        (template, tag.name, tag.build, tag.created_at),
    )


def tags_of(connection: sqlite3.Connection, template: str) -> list[Tag]:
    """Return the tags of a template, the latest first."""
    rows = connection.execute(
        "SELECT name, build, created_at FROM template_tags WHERE template = ? ORDER BY created_at DESC, name", (template,)
    )
    return [Tag(row["name"], row["build"], row["created_at"]) for row in rows]


def tagged_build(connection: sqlite3.Connection, template: str, tag: str) -> BuildRecord | None:
    """Return the build that a tag names."""
    rows = connection.execute(
        "SELECT builds.* FROM builds JOIN template_tags AS tag ON tag.build = builds.id WHERE tag.template = ? AND tag.name = ?",
        (template, tag),
    )
    row = rows.fetchone()
    return None if row is None else _build(row)


def remove_tags(connection: sqlite3.Connection, template: str, tags: Sequence[str]) -> None:
    """Forget tags."""
    for tag in tags:
        connection.execute("DELETE FROM template_tags WHERE template = ? AND name = ?", (template, tag))


def _row(record: BuildRecord) -> dict[str, Any]:
    return {name: json.dumps(value) if name in _JSON else value for name, value in asdict(record).items()}


def _build(row: sqlite3.Row) -> BuildRecord:
    fields = {name: json.loads(row[name]) if name in _JSON else row[name] for name in row.keys()}  # noqa: SIM118
    return BuildRecord(**fields)
