-- serves: 1

-- name: inbox
-- What was claimed, and the audit log of it. Rows are inserted with the work that the message
-- causes, and stay as they are: only who came early gets a new seq, and payloads may be erased. Times are microseconds since 1970 in UTC.
CREATE TABLE {inbox} (
  seq          INTEGER PRIMARY KEY,
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
  minted_at    INTEGER,
  received_at  INTEGER NOT NULL,
  UNIQUE (consumer, origin, message_id)
) STRICT;

-- name: inbox_received_at
-- Finds a day.
CREATE INDEX {inbox_received_at} ON {inbox} (received_at);

-- name: sequence
-- The last arrival number that was drawn.
CREATE TABLE {seq} (last INTEGER NOT NULL) STRICT;

-- name: sequence_start
-- Numbers begin at 1.
INSERT INTO {seq} (last) VALUES (0);

-- name: pending
-- What still has to run, with everything needed to run it; a row is deleted when it is done.
-- available_at: NULL = ready, a time = the retrying head of its key, the largest integer = parked.
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
  alone        INTEGER NOT NULL DEFAULT 0,
  deaths       INTEGER NOT NULL DEFAULT 0,
  replay       INTEGER NOT NULL DEFAULT 0,
  available_at INTEGER,
  last_error   TEXT
) STRICT;

-- name: pending_ready
-- Finds the ready rows, however many others wait.
CREATE INDEX {pending_ready} ON {pending} (consumer, seq) WHERE available_at IS NULL;

-- name: pending_retrying
-- Finds the heads whose time has come; queries repeat the literal, or the index is not used.
CREATE INDEX {pending_retrying} ON {pending} (consumer, available_at)
  WHERE available_at < 9223372036854775807;

-- name: pending_key
-- Finds what waits for a key.
CREATE INDEX {pending_key} ON {pending} (consumer, key, seq);

-- name: dead
-- Dead letters and quarantine, with everything needed to run or show them.
-- sighting: what makes one quarantined delivery the same as another, so that a rewind adds nothing.
CREATE TABLE {dead} (
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
  parks        INTEGER NOT NULL DEFAULT 0,
  payload      BLOB NOT NULL,
  content_hash BLOB,
  headers      TEXT,
  source       TEXT,
  coordinates  TEXT,
  occurred_at  INTEGER,
  attempts     INTEGER NOT NULL DEFAULT 0,
  deaths       INTEGER NOT NULL DEFAULT 0,
  replay       INTEGER NOT NULL DEFAULT 0,
  error        TEXT,
  fingerprint  TEXT,
  sighting     BLOB,
  died_at      INTEGER NOT NULL
) STRICT;

-- name: dead_sighting
-- A delivery is quarantined once.
CREATE UNIQUE INDEX {dead_sighting} ON {dead} (consumer, sighting);

-- name: dead_parks
-- Finds the dead letters that hold a key; queries write `parks`, not `parks = 1`.
CREATE INDEX {dead_parks} ON {dead} (consumer, key) WHERE parks;

-- name: attempt
-- Every failed run of a handler, and every run of a message that had been stored.
-- An inline success needs no row: its inbox row says received and done at once.
CREATE TABLE {attempt} (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer    TEXT NOT NULL,
  origin      TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  replay      INTEGER NOT NULL DEFAULT 0,
  number      INTEGER NOT NULL,
  outcome     TEXT NOT NULL,
  error       TEXT,
  fingerprint TEXT,
  duration    REAL,
  worker      TEXT NOT NULL,
  ended_at    INTEGER NOT NULL
) STRICT;

-- name: attempt_message
-- Finds the attempts of a message.
CREATE INDEX {attempt_message} ON {attempt} (consumer, origin, message_id);

-- name: action
-- What operators did: one row per message, written with the deed.
CREATE TABLE {action} (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer   TEXT NOT NULL,
  act        TEXT NOT NULL,
  by_whom    TEXT NOT NULL,
  why        TEXT NOT NULL,
  dead_id    INTEGER,
  origin     TEXT,
  message_id TEXT,
  reason     TEXT,
  replay     INTEGER NOT NULL DEFAULT 0,
  acted_at   INTEGER NOT NULL
) STRICT;

-- name: action_message
-- Finds what was done to a message.
CREATE INDEX {action_message} ON {action} (consumer, origin, message_id);

-- name: minute
-- Counters per worker and minute.
CREATE TABLE {minute} (
  consumer    TEXT NOT NULL,
  minute      INTEGER NOT NULL,
  worker      TEXT NOT NULL,
  received    INTEGER NOT NULL DEFAULT 0,
  done        INTEGER NOT NULL DEFAULT 0,
  duplicate   INTEGER NOT NULL DEFAULT 0,
  failed      INTEGER NOT NULL DEFAULT 0,
  parked      INTEGER NOT NULL DEFAULT 0,
  stored      INTEGER NOT NULL DEFAULT 0,
  dead        INTEGER NOT NULL DEFAULT 0,
  quarantined INTEGER NOT NULL DEFAULT 0,
  ignored     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer, minute, worker)
) STRICT;

-- name: consumer
-- One row per consumer whose records have been purged: nothing older than the mark can be
-- told from a duplicate.
CREATE TABLE {consumer} (consumer TEXT PRIMARY KEY, purged_before INTEGER NOT NULL) STRICT;
