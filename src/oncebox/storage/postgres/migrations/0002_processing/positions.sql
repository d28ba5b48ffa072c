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
  consumer    text COLLATE "C" NOT NULL,
  source      text COLLATE "C" NOT NULL,
  partition   text COLLATE "C" NOT NULL,
  next        bigint NOT NULL,
  log_id      text,
  lag         bigint,
  settled     bigint,
  owner       text,
  owner_name  text,
  owned_at    timestamptz,
  batch       integer NOT NULL DEFAULT 0,
  suspects    integer NOT NULL DEFAULT 0,
  crashes     integer NOT NULL DEFAULT 0,
  skipped     bigint NOT NULL DEFAULT 0,
  skipped_at  timestamptz,
  skipped_why text,
  until       timestamptz,
  seen_at     timestamptz,
  moved_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, source, partition)
) WITH (fillfactor = 50);

-- name: advance
-- Moves a position forward. Fails with SQLSTATE OB002 if the partition has another owner now.
CREATE FUNCTION {advance}(
  p_consumer text, p_source text, p_partition text, p_owner text, p_old bigint, p_new bigint,
  p_log_id text, p_suspects integer, p_heartbeat_timeout double precision
) RETURNS void LANGUAGE plpgsql VOLATILE AS $advance$
BEGIN
  UPDATE {position} SET next = p_new, log_id = p_log_id, suspects = p_suspects, crashes = 0,
    until = clock_timestamp() + make_interval(secs => p_heartbeat_timeout), moved_at = clock_timestamp()
  WHERE consumer = p_consumer AND source = p_source AND partition = p_partition
    AND owner = p_owner AND next IN (p_old, p_new);  -- p_new: the COMMIT succeeded, its reply was lost
  IF NOT FOUND THEN
    RAISE EXCEPTION 'another worker reads this partition now' USING ERRCODE = 'OB002';
  END IF;
END
$advance$;

-- name: outage
-- A worker that cannot read its source now, and why. The row is deleted when the worker can read again,
-- or stops.
CREATE TABLE {outage} (
  consumer text COLLATE "C" NOT NULL,
  source   text COLLATE "C" NOT NULL,
  worker   text COLLATE "C" NOT NULL,
  why      text NOT NULL,
  since    timestamptz NOT NULL DEFAULT clock_timestamp(),
  until    timestamptz NOT NULL,
  PRIMARY KEY (consumer, source, worker)
);
