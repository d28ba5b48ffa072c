-- serves: 1

-- name: position
-- How far a consumer has read a partition or file, and who reads it at the moment. The row is written
-- first in every unit of work: so a reader that lost its partition can commit nothing any more.
-- lag, settled: what its owner saw of it at seen_at: how much was not read yet, and what the broker
-- knew.
-- suspects: how many of the next messages were in the hands of an owner that vanished.
CREATE TABLE {position} (
  consumer   text COLLATE "C" NOT NULL,
  source     text COLLATE "C" NOT NULL,
  part       text COLLATE "C" NOT NULL,
  next       bigint NOT NULL,
  mark       text,
  lag        bigint,
  settled    bigint,
  owner      text,
  owner_name text,
  owned_at   timestamptz,
  batch      integer NOT NULL DEFAULT 0,
  suspects   integer NOT NULL DEFAULT 0,
  until      timestamptz,
  seen_at    timestamptz,
  moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, source, part)
) WITH (fillfactor = 50);

-- name: advance
-- Moves a position on, or fails with SQLSTATE OB002 if it has another owner by now.
CREATE FUNCTION {advance}(
  p_consumer text, p_source text, p_part text, p_owner text, p_old bigint, p_new bigint,
  p_mark text, p_suspects integer, p_patience double precision
) RETURNS void LANGUAGE plpgsql VOLATILE AS $advance$
BEGIN
  UPDATE {position} SET next = p_new, mark = p_mark, suspects = p_suspects,
    until = clock_timestamp() + make_interval(secs => p_patience), moved_at = clock_timestamp()
  WHERE consumer = p_consumer AND source = p_source AND part = p_part
    AND owner = p_owner AND next IN (p_old, p_new);  -- new: the answer to our COMMIT got lost
  IF NOT FOUND THEN
    RAISE EXCEPTION 'another worker reads this part now' USING ERRCODE = 'OB002';
  END IF;
END
$advance$;
