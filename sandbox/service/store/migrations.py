"""The versions of the store's tables. A change of them is one more step here: none that was released is ever edited."""

from __future__ import annotations

import sqlite3
from pathlib import Path

STEPS = (
    """
    CREATE TABLE tenants (
        id TEXT PRIMARY KEY,
        created_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (id),
        name TEXT NOT NULL,
        scope TEXT NOT NULL,
        digest BLOB NOT NULL UNIQUE,
        shown TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL,
        revoked_at REAL
    ) STRICT;
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (id),
        ident TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL,
        reason TEXT,
        post_mortem TEXT,
        created_at REAL NOT NULL,
        ends_at REAL NOT NULL,
        ended_at REAL,
        time_to_live_seconds REAL NOT NULL,
        metadata TEXT NOT NULL,
        description TEXT NOT NULL,
        spec TEXT NOT NULL,
        env TEXT NOT NULL
    ) STRICT;
    CREATE TABLE requests (
        sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        operation TEXT NOT NULL,
        digest BLOB NOT NULL,
        sent_at REAL NOT NULL,
        answered_at REAL,
        PRIMARY KEY (sandbox, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE creations (
        tenant TEXT NOT NULL REFERENCES tenants (id),
        key TEXT NOT NULL,
        digest BLOB NOT NULL,
        sandbox TEXT NOT NULL,
        created_at REAL NOT NULL,
        answer TEXT,
        PRIMARY KEY (tenant, key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE checkpoints (
        sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        file TEXT NOT NULL,
        UNIQUE (sandbox, name)
    ) STRICT;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT NOT NULL,
        sandbox TEXT NOT NULL,
        at REAL NOT NULL,
        data TEXT NOT NULL
    ) STRICT;
    CREATE INDEX events_of_tenants ON events (tenant, id);
    """,
    """
    CREATE TABLE members (
        ident TEXT PRIMARY KEY
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE tenants ADD COLUMN name TEXT NOT NULL DEFAULT '';
    ALTER TABLE tenants ADD COLUMN deleting_at REAL;
    ALTER TABLE tenants ADD COLUMN ceiling TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tenants ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tenants ADD COLUMN transferred REAL NOT NULL DEFAULT 0;
    ALTER TABLE tenants ADD COLUMN transferred_at REAL NOT NULL DEFAULT 0;
    ALTER TABLE sandboxes ADD COLUMN gone_at REAL;
    ALTER TABLE checkpoints ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE public_ports (
        sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        port INTEGER NOT NULL,
        PRIMARY KEY (sandbox, port)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at REAL NOT NULL,
        tenant TEXT NOT NULL,
        key TEXT NOT NULL,
        address TEXT NOT NULL,
        action TEXT NOT NULL,
        target TEXT NOT NULL,
        status INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        request TEXT NOT NULL
    ) STRICT;
    CREATE INDEX audit_of_tenants ON audit (tenant, id);
    CREATE INDEX audit_by_time ON audit (at);
    CREATE TABLE service (id TEXT NOT NULL, boot TEXT, clock_offset REAL) STRICT;
    INSERT INTO service (id) VALUES (lower(hex(randomblob(8))));
    """,
    """
    ALTER TABLE tenants ADD COLUMN events INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE events ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    UPDATE events SET number = id;
    UPDATE tenants SET events = coalesce((SELECT max(id) FROM events WHERE tenant = tenants.id), 0);
    CREATE INDEX events_by_number ON events (tenant, number);
    """,
    # A checkpoint is known by the request that made it.
    """
    ALTER TABLE checkpoints ADD COLUMN request TEXT;
    """,
    """
    CREATE TABLE secrets (
        tenant TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        sealed BLOB NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (tenant, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sealing (id INTEGER PRIMARY KEY CHECK (id = 1), sealed BLOB NOT NULL) STRICT;
    ALTER TABLE sandboxes ADD COLUMN sealed BLOB NOT NULL DEFAULT x'';
    ALTER TABLE sandboxes ADD COLUMN options TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE sandboxes DROP COLUMN env;
    """,
    # Entries of the audit are numbered for each tenant: those of all together tell each how busy the others are.
    """
    ALTER TABLE audit ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    UPDATE audit SET number = ranked.number FROM
        (SELECT id, row_number() OVER (PARTITION BY tenant ORDER BY id) AS number FROM audit) AS ranked
        WHERE ranked.id = audit.id;
    CREATE TABLE audit_numbers (tenant TEXT PRIMARY KEY, last INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    INSERT INTO audit_numbers SELECT tenant, max(number) FROM audit GROUP BY tenant;
    CREATE INDEX audit_by_number ON audit (tenant, number);
    """,
    # What is old is found without reading all of a day.
    """
    CREATE INDEX creations_by_time ON creations (created_at);
    CREATE INDEX events_by_time ON events (at);
    """,
    # Files of sandboxes that outlive them, and volumes.
    """
    CREATE TABLE snapshots (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (id),
        sandbox TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        created_at REAL NOT NULL,
        bytes INTEGER NOT NULL,
        image TEXT NOT NULL,
        spec TEXT NOT NULL,
        deleting INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX snapshots_of_tenants ON snapshots (tenant, created_at);
    CREATE TABLE volumes (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (id),
        name TEXT NOT NULL,
        created_at REAL NOT NULL,
        state TEXT NOT NULL,
        UNIQUE (tenant, name)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE templates (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL REFERENCES tenants (id),
        name TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        used_at REAL,
        uses INTEGER NOT NULL DEFAULT 0,
        UNIQUE (tenant, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE builds (
        id TEXT PRIMARY KEY,
        template TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
        tenant TEXT NOT NULL,
        state TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        finished_at REAL,
        cpus REAL NOT NULL,
        memory_bytes INTEGER NOT NULL,
        tags TEXT NOT NULL,
        image TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        config TEXT NOT NULL,
        reason TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX builds_of_templates ON builds (template, created_at);
    CREATE INDEX builds_of_tenants ON builds (tenant, state);
    CREATE TABLE build_logs (
        build TEXT PRIMARY KEY REFERENCES builds (id) ON DELETE CASCADE,
        data TEXT NOT NULL
    ) STRICT;
    CREATE TABLE template_tags (
        template TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        build TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
        created_at REAL NOT NULL,
        PRIMARY KEY (template, name)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX tags_of_builds ON template_tags (build);
    """,
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the last version. A store that has data is copied to ``path`` with its version first.

    Raises sqlite3.Error, and ValueError for a store that a later version of Gamebox has written.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(STEPS):
        raise ValueError(f"it was written by a later version of gamebox (its tables have version {version})")
    if 0 < version < len(STEPS):
        copy = path.with_suffix(f".{version}{path.suffix}")
        copy.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(copy),))
    for number in range(version, len(STEPS)):
        connection.executescript(f"BEGIN; {STEPS[number]}; PRAGMA user_version = {number + 1}; COMMIT;")
