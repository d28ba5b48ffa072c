-- name: worker
-- The workers. A worker that stops cleanly deletes its row. The row of a worker that crashed stays for
-- an hour. taken_over_at: when another worker noticed the crash.
CREATE TABLE {worker} (
  consumer      TEXT NOT NULL,
  name          TEXT NOT NULL,
  incarnation   TEXT NOT NULL,
  batch         INTEGER NOT NULL,
  started_at    INTEGER NOT NULL,
  heartbeat_at  INTEGER NOT NULL,
  until         INTEGER NOT NULL,
  taken_over_at INTEGER,
  PRIMARY KEY (consumer, incarnation)
) STRICT;
