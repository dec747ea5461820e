-- The event log, version 2: the signature of each run's last event, made with the key of the user who wrote it.

CREATE TABLE signatures (
    run        TEXT PRIMARY KEY,
    id         INTEGER NOT NULL,         -- of the last event that was signed
    signature  TEXT NOT NULL             -- HMAC-SHA-256, see signing.py
) WITHOUT ROWID;
