-- name: sequence
-- The next sequence number of each key. waiting_since: since when that number is missing while later
-- ones wait.
CREATE TABLE {sequence} (
  consumer      TEXT NOT NULL,
  key           TEXT NOT NULL,
  epoch         TEXT NOT NULL,
  next          INTEGER,
  waiting_since INTEGER,
  PRIMARY KEY (consumer, key, epoch)
) STRICT;

-- name: sequence_waiting
-- Finds the keys whose next number is missing.
CREATE INDEX {sequence_waiting} ON {sequence} (consumer, waiting_since) WHERE waiting_since IS NOT NULL;

-- name: awaiting_sequence
-- Messages that arrived before earlier numbers of their key, with everything needed to store them
-- later.
-- seq: NULL where the row only occupies the number of a message that is quarantined.
CREATE TABLE {awaiting_sequence} (
  consumer    TEXT NOT NULL,
  key         TEXT NOT NULL,
  epoch       TEXT NOT NULL,
  number      INTEGER NOT NULL,
  seq         INTEGER,
  lane        INTEGER NOT NULL,
  origin      TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  type        TEXT NOT NULL,
  version     INTEGER NOT NULL,
  payload     BLOB NOT NULL,
  headers     TEXT,
  source      TEXT,
  coordinates TEXT,
  occurred_at INTEGER,
  isolated    INTEGER NOT NULL,
  PRIMARY KEY (consumer, key, epoch, number)
) STRICT;

-- name: awaiting_sequence_seq
-- Finds the row of a message.
CREATE INDEX {awaiting_sequence_seq} ON {awaiting_sequence} (seq);
