-- name: worker
-- The workers. A worker that stops cleanly deletes its row. The row of a worker that crashed stays for
-- an hour. taken_over_at: when another worker noticed the crash.
CREATE TABLE {worker} (
  consumer      text COLLATE "C" NOT NULL,
  name          text COLLATE "C" NOT NULL,
  incarnation   text NOT NULL,
  batch         integer NOT NULL,
  started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  until         timestamptz NOT NULL,
  taken_over_at timestamptz,
  PRIMARY KEY (consumer, incarnation)
);
