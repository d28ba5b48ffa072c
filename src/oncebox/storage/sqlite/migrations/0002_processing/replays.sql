-- name: replay
-- Runs of old messages under a name. state: running: its messages are stored as pending in steps;
-- stored: all are stored; cancelling: those that have not run are removed; cancelled: they are removed.
CREATE TABLE {replay} (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer  TEXT NOT NULL,
  name      TEXT NOT NULL,
  state     TEXT NOT NULL CHECK (state IN ('running', 'stored', 'cancelling', 'cancelled')),
  by_whom   TEXT NOT NULL,
  why       TEXT NOT NULL,
  wanted    TEXT NOT NULL,
  pace      REAL,
  total     INTEGER NOT NULL DEFAULT 0,
  stored    INTEGER NOT NULL DEFAULT 0,
  skipped   INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  due_at    INTEGER NOT NULL,
  began_at  INTEGER NOT NULL,
  ended_at  INTEGER
) STRICT;

-- name: replay_name
-- A name is used once.
CREATE UNIQUE INDEX {replay_name} ON {replay} (consumer, name);

-- name: replay_active
-- Finds the replays that are to be continued.
CREATE INDEX {replay_active} ON {replay} (consumer, due_at)
  WHERE state IN ('running', 'cancelling');

-- name: replay_item
-- The messages that a replay has still to store. seq: the one of their first arrival.
CREATE TABLE {replay_item} (
  replay     INTEGER NOT NULL,
  seq        INTEGER NOT NULL,
  consumer   TEXT NOT NULL,
  key        TEXT,
  origin     TEXT NOT NULL,
  message_id TEXT NOT NULL,
  PRIMARY KEY (replay, seq)
) STRICT;

-- name: replay_item_message
-- Finds the replays that are going to store a message.
CREATE INDEX {replay_item_message} ON {replay_item} (consumer, origin, message_id);

-- name: replay_item_key
-- Finds the messages of a key that a replay has still to store.
CREATE INDEX {replay_item_key} ON {replay_item} (replay, key, seq);

-- name: pending_replay
-- Finds the messages that a replay has stored.
CREATE INDEX {pending_replay} ON {pending} (replay, seq) WHERE replay > 0;

-- name: pending_replaying
-- Finds the messages that a replay has stored and that are ready.
CREATE INDEX {pending_replaying} ON {pending} (replay) WHERE replay > 0 AND available_at IS NULL;

-- name: pending_replayed
-- Finds the pending replays of a message.
CREATE INDEX {pending_replayed} ON {pending} (consumer, origin, message_id) WHERE replay > 0;

-- name: dead_letter_replay
-- Finds the dead letters of a replay.
CREATE INDEX {dead_letter_replay} ON {dead_letter} (replay, id) WHERE replay > 0;

-- name: dead_letter_replayed
-- Finds the dead letters of the replays of a message.
CREATE INDEX {dead_letter_replayed} ON {dead_letter} (consumer, origin, message_id) WHERE replay > 0;

-- name: audit_replay
-- Finds the actions on the messages of a replay.
CREATE INDEX {audit_replay} ON {audit} (replay) WHERE replay > 0;
