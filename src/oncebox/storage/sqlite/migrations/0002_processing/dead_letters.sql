-- name: dead_letter
-- Dead letters and quarantined deliveries, with everything needed to show them or run them again.
-- blocks_key: the messages of its key wait until it is retried or discarded.
-- sighting: equal for two deliveries of the same quarantined message, so that the second adds no row.
-- notify_at: when to call the on_dead hooks; NULL: there are none, or they were called.
CREATE TABLE {dead_letter} (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer     TEXT NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('dead', 'quarantined')),
  reason       TEXT NOT NULL,
  seq          INTEGER,
  origin       TEXT,
  message_id   TEXT,
  type         TEXT,
  version      INTEGER,
  key          TEXT,
  blocks_key   INTEGER NOT NULL DEFAULT 0,
  payload      BLOB NOT NULL,
  content_hash BLOB,
  headers      TEXT,
  source       TEXT,
  coordinates  TEXT,
  occurred_at  INTEGER,
  attempts     INTEGER NOT NULL DEFAULT 0,
  crashes      INTEGER NOT NULL DEFAULT 0,
  replay       INTEGER NOT NULL DEFAULT 0,
  error        TEXT,
  fingerprint  TEXT,
  sighting     BLOB,
  dead_at      INTEGER NOT NULL,
  notify_at    INTEGER
) STRICT;

-- name: dead_letter_sighting
-- A delivery is quarantined once.
CREATE UNIQUE INDEX {dead_letter_sighting} ON {dead_letter} (consumer, sighting);

-- name: dead_letter_blocks_key
-- Finds the dead letters that block a key. A query uses this index only if it says `blocks_key`, not
-- `blocks_key = 1`.
CREATE INDEX {dead_letter_blocks_key} ON {dead_letter} (consumer, key) WHERE blocks_key;

-- name: dead_letter_unnotified
-- Finds the dead letters whose hooks are still to be called.
CREATE INDEX {dead_letter_unnotified} ON {dead_letter} (consumer, notify_at)
  WHERE notify_at IS NOT NULL;

-- name: dead_letter_listed
-- Lists dead letters in the order of their ids.
CREATE INDEX {dead_letter_listed} ON {dead_letter} (consumer, id);

-- name: dead_letter_crashed
-- Finds the dead letters that crashed their process, by time.
CREATE INDEX {dead_letter_crashed} ON {dead_letter} (consumer, dead_at) WHERE crashes > 0;

-- name: dead_letter_seq
-- Finds the dead letter of a message.
CREATE INDEX {dead_letter_seq} ON {dead_letter} (seq);

-- name: audit
-- Actions of operators: one row per message, written in the transaction of the action.
CREATE TABLE {audit} (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer   TEXT NOT NULL,
  action        TEXT NOT NULL,
  by_whom    TEXT NOT NULL,
  why        TEXT NOT NULL,
  dead_id    INTEGER,
  origin     TEXT,
  message_id TEXT,
  reason     TEXT,
  replay     INTEGER NOT NULL DEFAULT 0,
  acted_at   INTEGER NOT NULL
) STRICT;

-- name: audit_message
-- Finds the actions on a message.
CREATE INDEX {audit_message} ON {audit} (consumer, origin, message_id);
