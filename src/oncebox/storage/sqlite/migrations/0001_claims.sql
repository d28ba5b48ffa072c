-- serves: 1

-- name: inbox
-- One row per claimed message. The unique key recognises duplicates. A row is inserted in the
-- transaction that does the message's work. Afterwards only two things change it: a message that
-- awaited its sequence gets a new seq when it is stored, and erasing sets payload and headers to NULL.
-- Times are microseconds since 1970 in UTC.
-- seq: arrival number. AUTOINCREMENT, so that the number of a purged message is not used again.
-- by_caller: 1 where inbox.claim() inserted the row in the caller's transaction; else NULL.
CREATE TABLE {inbox} (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer     TEXT NOT NULL,
  origin       TEXT NOT NULL,
  message_id   TEXT NOT NULL,
  type         TEXT NOT NULL,
  version      INTEGER NOT NULL,
  key          TEXT,
  payload      BLOB,
  content_hash BLOB,
  headers      TEXT,
  source       TEXT,
  coordinates  TEXT,
  occurred_at  INTEGER,
  produced_at  INTEGER,
  received_at  INTEGER NOT NULL,
  by_caller    INTEGER,
  UNIQUE (consumer, origin, message_id)
) STRICT;

-- name: inbox_received_at
-- Finds the messages of a time span.
CREATE INDEX {inbox_received_at} ON {inbox} (received_at);

-- name: inbox_seq
-- SQLite keeps the last arrival number in its own table sqlite_sequence, and adds the row at the first
-- insert. Replays and messages that awaited their sequence draw numbers from this row too.
INSERT INTO sqlite_sequence (name, seq) VALUES (trim('{inbox}', '"'), 0);

-- name: consumer
-- One row per consumer whose messages were purged.
-- purged_before: the watermark. A new message that was produced before it may be a duplicate of a
-- message that is purged, so it is refused or quarantined.
-- last_purge_at: when the last purge ran.
-- purge_paused_until: nothing is purged before this time, because an archive was restored.
CREATE TABLE {consumer} (
  consumer           TEXT PRIMARY KEY,
  purged_before      INTEGER NOT NULL,
  last_purge_at      INTEGER,
  purge_paused_until INTEGER
) STRICT;
