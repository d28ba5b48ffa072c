-- serves: 1

-- name: position
-- How far a consumer has read a partition or file, and who reads it at the moment. The row is written
-- first in every unit of work: so a reader that lost its partition can commit nothing any more.
-- lag, settled: what its owner saw of it at seen_at: how much was not read yet, and what the broker
-- knew.
-- suspects: how many of the next messages were in the hands of an owner that vanished.
CREATE TABLE {position} (
  consumer   TEXT NOT NULL,
  source     TEXT NOT NULL,
  part       TEXT NOT NULL,
  next       INTEGER NOT NULL,
  mark       TEXT,
  lag        INTEGER,
  settled    INTEGER,
  owner      TEXT,
  owner_name TEXT,
  owned_at   INTEGER,
  batch      INTEGER NOT NULL DEFAULT 0,
  suspects   INTEGER NOT NULL DEFAULT 0,
  until      INTEGER,
  seen_at    INTEGER,
  moved_at   INTEGER NOT NULL,
  PRIMARY KEY (consumer, source, part)
) STRICT;
