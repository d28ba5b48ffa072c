-- name: last_arrival
-- When anything new arrived for the last time, by the minute.
SELECT minute FROM {minute} WHERE consumer = :consumer AND received > duplicate
ORDER BY minute DESC LIMIT 1;

-- name: oldest_arrival
-- When the oldest of what arrived since a time came into being.
SELECT min(minted_at) FROM {inbox} WHERE consumer = :consumer AND received_at >= :since;

-- name: parts_seen
-- How the parts of sources stand.
SELECT source || ' ' || part, lag, owner IS NOT NULL AND until >= :now, seen_at, moved_at
FROM {position} WHERE consumer = :consumer ORDER BY source, part;

-- name: set_mark
-- The mark only goes forward.
INSERT INTO {consumer} AS c (consumer, purged_before) VALUES (:consumer, :mark)
ON CONFLICT (consumer) DO UPDATE SET purged_before = max(c.purged_before, excluded.purged_before)
RETURNING purged_before;

-- name: take_turn
-- Whose turn it is to keep house: the first one who asks after some time.
INSERT INTO {consumer} AS c (consumer, purged_before, kept_at) VALUES (:consumer, 0, :now)
ON CONFLICT (consumer) DO UPDATE SET kept_at = :now
WHERE c.kept_at IS NULL OR c.kept_at < :before
RETURNING 1;

-- name: count_old
-- How many messages are older than a mark, finished or not.
SELECT count(*) FROM (
  SELECT 1 FROM {inbox} WHERE consumer = :consumer AND received_at < :mark LIMIT :limit
) i;

-- name: old_windows
-- When old messages arrived: the first of every 500.
SELECT received_at FROM (
  SELECT received_at, row_number() OVER (ORDER BY received_at) AS n
  FROM {inbox} WHERE consumer = :consumer AND received_at < :mark
) WHERE n % 500 = 1 ORDER BY received_at;

-- name: old_ones
-- What is old and finished within a window of time.
SELECT i.seq, i.origin, i.message_id FROM {inbox} i
WHERE i.received_at >= :low AND i.received_at < :high AND i.consumer = :consumer
  AND (i.minted_at IS NULL OR i.minted_at < :mark)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = i.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {early} e WHERE e.seq = i.seq AND e.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {replay_item} r WHERE r.consumer = i.consumer
                  AND r.origin = i.origin AND r.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.replay > 0 AND p.consumer = i.consumer
                  AND p.origin = i.origin AND p.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.replay > 0 AND d.consumer = i.consumer
                  AND d.origin = i.origin AND d.message_id = i.message_id);

-- name: forget
-- Forget some messages.
DELETE FROM {inbox} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: forget_attempts
-- Forget the runs of some messages.
DELETE FROM {attempt} WHERE consumer = :consumer AND (origin, message_id) IN (
  SELECT value ->> 0, value ->> 1 FROM json_each(:messages)
);

-- name: forget_minutes
-- Counters are kept as long as messages.
DELETE FROM {minute} WHERE consumer = :consumer AND minute < :mark;
