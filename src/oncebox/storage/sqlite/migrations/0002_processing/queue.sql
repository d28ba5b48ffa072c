-- name: pending
-- Messages that still have to run, with everything that a run needs. A row is deleted when its message
-- is done.
-- available_at: NULL = ready; a time = the first message of its key, to be retried then;
-- the largest integer = blocked behind the first message or a dead letter of its key.
-- isolated: runs by itself, because it may crash its process. crashes: how often it did in a row.
CREATE TABLE {pending} (
  seq          INTEGER PRIMARY KEY,
  consumer     TEXT NOT NULL,
  lane         INTEGER NOT NULL,
  origin       TEXT NOT NULL,
  message_id   TEXT NOT NULL,
  type         TEXT NOT NULL,
  version      INTEGER NOT NULL,
  key          TEXT,
  payload      BLOB NOT NULL,
  headers      TEXT,
  source       TEXT,
  coordinates  TEXT,
  occurred_at  INTEGER,
  attempts     INTEGER NOT NULL DEFAULT 0,
  isolated     INTEGER NOT NULL DEFAULT 0,
  crashes      INTEGER NOT NULL DEFAULT 0,
  replay       INTEGER NOT NULL DEFAULT 0,
  available_at INTEGER,
  last_error   TEXT
) STRICT;

-- name: pending_ready
-- Finds the ready rows, however many other rows wait.
CREATE INDEX {pending_ready} ON {pending} (consumer, seq) WHERE available_at IS NULL;

-- name: pending_retrying
-- Finds the messages whose retry is due. A query uses this index only if it repeats the literal.
CREATE INDEX {pending_retrying} ON {pending} (consumer, available_at)
  WHERE available_at < 9223372036854775807;

-- name: pending_key
-- Finds the messages of a key.
CREATE INDEX {pending_key} ON {pending} (consumer, key, seq);

-- name: pending_crashing
-- Finds the messages that crashed their process.
CREATE INDEX {pending_crashing} ON {pending} (consumer) WHERE crashes > 0;
