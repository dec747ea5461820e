-- The event log, version 1. Events are only ever added; a run leaves as a whole, and its tombstone says so.

CREATE TABLE events (
    run       TEXT NOT NULL,
    id        INTEGER NOT NULL,          -- 1, 2, 3 ... in each run
    parent    TEXT,                      -- the run that this one is a part of
    kind      TEXT NOT NULL,
    at        TEXT NOT NULL,             -- ISO 8601 with offset
    data      TEXT NOT NULL,             -- canonical JSON
    previous  TEXT NOT NULL,             -- hash of the event before it in its run; '' for the first
    hash      TEXT NOT NULL,             -- SHA-256 over all columns before this one, see chain.py
    PRIMARY KEY (run, id)
) WITHOUT ROWID;

CREATE INDEX events_by_parent ON events (parent) WHERE parent IS NOT NULL AND id = 1;

-- Texts that are too long for an event, by their SHA-256.
CREATE TABLE blobs (
    sha256    TEXT PRIMARY KEY,
    content   BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_uses (
    run       TEXT NOT NULL,
    sha256    TEXT NOT NULL REFERENCES blobs (sha256),
    PRIMARY KEY (run, sha256)
) WITHOUT ROWID;

CREATE INDEX blob_uses_by_blob ON blob_uses (sha256);

-- Runs that were removed: how many events they had, and the hash of the last.
CREATE TABLE removed (
    run       TEXT PRIMARY KEY,
    at        TEXT NOT NULL,
    events    INTEGER NOT NULL,
    head      TEXT NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER events_follow_each_other BEFORE INSERT ON events
WHEN NEW.id != 1 + coalesce((SELECT max(id) FROM events WHERE run = NEW.run), 0)
  OR NEW.previous != coalesce((SELECT hash FROM events WHERE run = NEW.run ORDER BY id DESC LIMIT 1), '')
  OR EXISTS (SELECT 1 FROM removed WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'an event does not follow the one before it'); END;

CREATE TRIGGER events_stay_as_they_are BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END;

CREATE TRIGGER events_stay BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM removed WHERE run = OLD.run)
BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END;

CREATE TRIGGER blobs_stay_as_they_are BEFORE UPDATE ON blobs
BEGIN SELECT RAISE(ABORT, 'blobs are only ever added'); END;

CREATE TRIGGER blobs_stay BEFORE DELETE ON blobs
WHEN EXISTS (SELECT 1 FROM blob_uses WHERE sha256 = OLD.sha256)
BEGIN SELECT RAISE(ABORT, 'a blob is still used'); END;

CREATE TRIGGER uses_stay_as_they_are BEFORE UPDATE ON blob_uses
BEGIN SELECT RAISE(ABORT, 'uses are only ever added'); END;

CREATE TRIGGER uses_stay BEFORE DELETE ON blob_uses
WHEN NOT EXISTS (SELECT 1 FROM removed WHERE run = OLD.run)
BEGIN SELECT RAISE(ABORT, 'uses are only ever added'); END;

CREATE TRIGGER tombstones_stay_as_they_are BEFORE UPDATE ON removed
BEGIN SELECT RAISE(ABORT, 'tombstones stay'); END;

CREATE TRIGGER tombstones_stay BEFORE DELETE ON removed
BEGIN SELECT RAISE(ABORT, 'tombstones stay'); END;
