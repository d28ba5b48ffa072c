-- name: last_arrival
-- When anything new arrived for the last time, by the minute.
SELECT minute FROM {minute} WHERE consumer = :consumer AND received > duplicate
ORDER BY minute DESC LIMIT 1;

-- name: oldest_arrival
-- When the oldest of what arrived since a time came into being.
SELECT min(minted_at) FROM {inbox} WHERE consumer = :consumer AND received_at >= :since;

-- name: parts_seen
-- How the parts of sources stand.
SELECT source || ' ' || part, lag, owner IS NOT NULL AND until >= clock_timestamp(), seen_at, moved_at
FROM {position} WHERE consumer = :consumer ORDER BY source, part;

-- name: set_mark
-- The mark only goes forward.
INSERT INTO {consumer} AS c (consumer, purged_before) VALUES (:consumer, :mark)
ON CONFLICT (consumer) DO UPDATE SET purged_before = greatest(c.purged_before, excluded.purged_before)
RETURNING purged_before;

-- name: take_turn
-- Whose turn it is to keep house: the first one who asks after some time.
INSERT INTO {consumer} AS c (consumer, purged_before, kept_at)
VALUES (:consumer, '-infinity', clock_timestamp())
ON CONFLICT (consumer) DO UPDATE SET kept_at = clock_timestamp()
WHERE c.kept_at IS NULL OR c.kept_at < clock_timestamp() - make_interval(secs => :every)
RETURNING 1;

-- name: count_old
-- How many messages are older than a mark, finished or not.
SELECT count(*) FROM (
  SELECT FROM {inbox} WHERE consumer = :consumer AND received_at < :mark LIMIT :limit
) i;

-- name: old_windows
-- Where old messages are: groups of 64 pages. One look for all: the index by time knows no order.
SELECT DISTINCT (ctid::text::point)[0]::bigint / 64 AS w FROM {inbox}
WHERE consumer = :consumer AND received_at < :mark ORDER BY w;

-- name: forget
-- Forget what is old and finished within some pages, and its attempts. What somebody holds is left
-- for the next time.
WITH gone AS (
  DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT i.ctid FROM {inbox} i
    WHERE i.ctid >= ('(' || :window::bigint * 64 || ',0)')::tid
      AND i.ctid < ('(' || (:window::bigint + 1) * 64 || ',0)')::tid
      AND i.consumer = :consumer AND i.received_at < :mark
      AND (i.minted_at IS NULL OR i.minted_at < :mark)
      AND NOT EXISTS (SELECT FROM {pending} p WHERE p.seq = i.seq)
      AND NOT EXISTS (SELECT FROM {dead} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
      AND NOT EXISTS (SELECT FROM {early} e WHERE e.seq = i.seq AND e.consumer = i.consumer)
      AND NOT EXISTS (SELECT FROM {replay_item} r WHERE r.consumer = i.consumer
                      AND r.origin = i.origin AND r.message_id = i.message_id)
      AND NOT EXISTS (SELECT FROM {pending} p WHERE p.replay > 0 AND p.consumer = i.consumer
                      AND p.origin = i.origin AND p.message_id = i.message_id)
      AND NOT EXISTS (SELECT FROM {dead} d WHERE d.replay > 0 AND d.consumer = i.consumer
                      AND d.origin = i.origin AND d.message_id = i.message_id)
    FOR UPDATE OF i SKIP LOCKED
  ))
  RETURNING origin, message_id
), trail AS (
  DELETE FROM {attempt} a USING gone g
  WHERE a.consumer = :consumer AND a.origin = g.origin AND a.message_id = g.message_id
)
SELECT count(*) FROM gone;

-- name: forget_minutes
-- Counters are kept as long as messages.
DELETE FROM {minute} WHERE consumer = :consumer AND minute < :mark;
