-- serves: 1

-- name: worker
-- Who drains at the moment. A worker that stops cleanly deletes its row; one that died leaves it.
CREATE TABLE {worker} (
  consumer    TEXT NOT NULL,
  name        TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  batch       INTEGER NOT NULL,
  started_at  INTEGER NOT NULL,
  beat_at     INTEGER NOT NULL,
  until       INTEGER NOT NULL,
  PRIMARY KEY (consumer, incarnation)
) STRICT;

-- name: dead_tell
-- When somebody is to be told of a dead letter; NULL: it is not to be told, or was.
ALTER TABLE {dead} ADD COLUMN tell_at INTEGER;

-- name: dead_untold
-- Finds what is to be told.
CREATE INDEX {dead_untold} ON {dead} (consumer, tell_at) WHERE tell_at IS NOT NULL;

-- name: dead_listed
-- Finds dead letters in the order of their numbers.
CREATE INDEX {dead_listed} ON {dead} (consumer, id);

-- name: dead_killers
-- Finds what has killed its process for the last time.
CREATE INDEX {dead_killers} ON {dead} (consumer, died_at) WHERE deaths > 0;

-- name: pending_risky
-- Finds what has killed its process.
CREATE INDEX {pending_risky} ON {pending} (consumer) WHERE deaths > 0;
