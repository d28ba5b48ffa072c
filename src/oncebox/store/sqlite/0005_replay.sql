-- serves: 5

-- name: replay
-- Old messages that are run once more, under a name. state: running: they are stored as pending bit
-- by bit; stored: all are; cancelling: those that have not run are taken back; cancelled: they are.
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
-- Finds what is to be gone on with.
CREATE INDEX {replay_active} ON {replay} (consumer, due_at)
  WHERE state IN ('running', 'cancelling');

-- name: replay_item
-- What a replay has still to store, by the numbers of old.
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
-- Finds out whether a message is to be replayed.
CREATE INDEX {replay_item_message} ON {replay_item} (consumer, origin, message_id);

-- name: replay_item_key
-- Finds what a replay has to store of a key.
CREATE INDEX {replay_item_key} ON {replay_item} (replay, key, seq);

-- name: pending_replay
-- Finds what a replay has stored.
CREATE INDEX {pending_replay} ON {pending} (replay, seq) WHERE replay > 0;

-- name: pending_replaying
-- Finds what a replay has stored and is ready.
CREATE INDEX {pending_replaying} ON {pending} (replay) WHERE replay > 0 AND available_at IS NULL;

-- name: pending_replayed
-- Finds out whether a message is being replayed.
CREATE INDEX {pending_replayed} ON {pending} (consumer, origin, message_id) WHERE replay > 0;

-- name: dead_replay
-- Finds the dead letters of a replay.
CREATE INDEX {dead_replay} ON {dead} (replay, id) WHERE replay > 0;

-- name: dead_replayed
-- Finds out whether a replay of a message is a dead letter.
CREATE INDEX {dead_replayed} ON {dead} (consumer, origin, message_id) WHERE replay > 0;

-- name: action_replay
-- Finds what was done to the messages of a replay.
CREATE INDEX {action_replay} ON {action} (replay) WHERE replay > 0;
