-- name: position
-- How far a consumer has read a partition or file, and which worker reads it. Every unit of work writes
-- this row first, so a worker that lost its partition cannot commit.
-- lag, settled: measured by the owner at seen_at: how many messages were not read yet, and the position
-- that the broker knew.
-- suspects: how many of the next messages were in flight when their owner crashed.
-- crashes: how often in a row a process crashed while it converted the next message.
-- skipped: at most this many messages were deleted before they were read. skipped_at, skipped_why: when
-- that last happened, and why.
CREATE TABLE {position} (
  consumer    TEXT NOT NULL,
  source      TEXT NOT NULL,
  partition   TEXT NOT NULL,
  next        INTEGER NOT NULL,
  log_id      TEXT,
  lag         INTEGER,
  settled     INTEGER,
  owner       TEXT,
  owner_name  TEXT,
  owned_at    INTEGER,
  batch       INTEGER NOT NULL DEFAULT 0,
  suspects    INTEGER NOT NULL DEFAULT 0,
  crashes     INTEGER NOT NULL DEFAULT 0,
  skipped     INTEGER NOT NULL DEFAULT 0,
  skipped_at  INTEGER,
  skipped_why TEXT,
  until       INTEGER,
  seen_at     INTEGER,
  moved_at    INTEGER NOT NULL,
  PRIMARY KEY (consumer, source, partition)
) STRICT;

-- name: outage
-- A worker that cannot read its source now, and why. The row is deleted when the worker can read again,
-- or stops.
CREATE TABLE {outage} (
  consumer TEXT NOT NULL,
  source   TEXT NOT NULL,
  worker   TEXT NOT NULL,
  why      TEXT NOT NULL,
  since    INTEGER NOT NULL,
  until    INTEGER NOT NULL,
  PRIMARY KEY (consumer, source, worker)
) STRICT;
