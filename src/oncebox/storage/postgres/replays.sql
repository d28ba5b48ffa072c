-- name: select_messages
-- The messages of a filter.
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM {message} m
WHERE m.consumer = :consumer
  AND (:origin::text IS NULL OR m.origin = :origin)
  AND (:type::text IS NULL OR m.type = :type)
  AND (:key::text IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since::timestamptz, '-infinity')
  AND m.received_at < coalesce(:until::timestamptz, 'infinity');

-- name: select_messages_by_id
-- The messages of a filter, by ids. Origins are looked up one by one, because an index begins with
-- them.
WITH RECURSIVE origins AS (
  SELECT min(origin) AS origin FROM {inbox} WHERE consumer = :consumer
  UNION ALL
  SELECT (SELECT min(i.origin) FROM {inbox} i WHERE i.consumer = :consumer AND i.origin > o.origin)
  FROM origins o WHERE o.origin IS NOT NULL
)
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM (SELECT o.origin, u.id FROM origins o CROSS JOIN unnest(:ids::text[]) AS u (id)
      WHERE o.origin IS NOT NULL) n
JOIN {message} m ON m.consumer = :consumer AND m.origin = n.origin AND m.message_id = n.id
WHERE (:origin::text IS NULL OR m.origin = :origin)
  AND (:type::text IS NULL OR m.type = :type)
  AND (:key::text IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since::timestamptz, '-infinity')
  AND m.received_at < coalesce(:until::timestamptz, 'infinity');

-- name: count_messages
-- How many messages can be replayed, have no payload, or are in another state. SELECTED is one of the
-- statements above.
SELECT count(*) FILTER (WHERE m.state = :state AND m.has_payload),
       count(*) FILTER (WHERE m.state = :state AND NOT m.has_payload),
       count(*) FILTER (WHERE m.state <> :state)
FROM (SELECTED) m;

-- name: find_messages
-- The messages of a filter by seq, and whether there is data to erase: unfinished messages have a
-- payload in another table. SELECTED is one of the statements above.
SELECT m.key, m.origin, m.message_id,
       m.has_payload OR m.state NOT IN ('done', 'discarded')
       OR EXISTS (SELECT FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = m.origin
                  AND i.message_id = m.message_id AND i.headers IS NOT NULL)
       OR EXISTS (SELECT FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.message_id AND a.error IS NOT NULL)
FROM (SELECTED) m WHERE (:in_state::text IS NULL OR m.state = :in_state)
ORDER BY m.seq;

-- name: add_items
-- Lists the messages of a replay. SELECTED is one of the statements above.
INSERT INTO {replay_item} (replay, seq, consumer, key, origin, message_id)
SELECT :replay::bigint, m.seq, :consumer::text, m.key, m.origin, m.message_id
FROM (SELECTED) m WHERE m.state = :state AND m.has_payload;

-- name: stop_purging
-- Waits for running purges, and prevents new ones until the commit. Later purges see the messages of
-- the replay. A message that is purged while it is replayed would leave its attempts behind forever.
SELECT pg_advisory_xact_lock(:lock::bigint);

-- name: make_replay
-- Creates a replay. No row if the name was used before.
INSERT INTO {replay} (consumer, name, state, by_whom, why, wanted, pace)
VALUES (:consumer, :name, 'running', :by, :why, :wanted::json, :pace::double precision)
ON CONFLICT (consumer, name) DO NOTHING
RETURNING id;

-- name: set_total
-- How many messages the replay has to store.
UPDATE {replay} SET total = (SELECT count(*) FROM {replay_item} WHERE replay = :replay)
WHERE id = :replay;

-- name: replays
-- Replays, the newest first, and the states of their messages.
SELECT r.id, r.name, r.state, r.by_whom, r.why, r.wanted::text, r.pace, r.total, r.stored, r.skipped,
       r.cancelled,
       (SELECT count(*) FROM {pending} p WHERE p.replay = r.id AND p.replay > 0),
       (SELECT count(*) FROM {dead_letter} d WHERE d.replay = r.id AND d.replay > 0),
       (SELECT count(*) FROM {audit} a WHERE a.replay = r.id AND a.replay > 0 AND a.action = 'discard'),
       r.began_at, r.ended_at
FROM {replay} r
WHERE r.consumer = :consumer AND (:name::text IS NULL OR r.name = :name)
ORDER BY r.id DESC LIMIT :limit;

-- name: next_replay
-- Seconds until a replay is to be continued; NULL if there is none.
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::double precision
FROM {replay} WHERE consumer = :consumer AND state IN ('running', 'cancelling');

-- name: lock_replay
-- The next replay to continue, cancellations first. Skips replays that another worker has locked.
SELECT id, state, pace FROM {replay}
WHERE consumer = :consumer AND state IN ('running', 'cancelling') AND due_at <= clock_timestamp()
ORDER BY state, due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: count_replaying
-- How many messages of a replay are ready to run. Counts at most :limit.
SELECT count(*) FROM (
  SELECT FROM {pending} WHERE replay = :replay AND replay > 0 AND available_at IS NULL LIMIT :limit
) p;

-- name: count_replayed
-- How many messages of a replay are unfinished. Counts at most :limit.
SELECT count(*) FROM (
  SELECT FROM {pending} WHERE replay = :replay AND replay > 0 LIMIT :limit
) p;

-- name: limit_lock_wait
-- Background work waits at most 1 s for a lock, and is ended after 30 s if its process is suspended. It
-- looks up messages one by one, even with a plan that was made while the tables were tiny.
SELECT set_config('lock_timeout', '1s', true), set_config('enable_seqscan', 'off', true),
       {fence}('30s');

-- name: next_items
-- The next messages that a replay stores, in their old order.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay ORDER BY seq LIMIT :limit;

-- name: items_of_keys
-- More messages of some keys that a replay stores, in their old order.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay AND key = ANY (:keys::text[]) AND seq > :after ORDER BY seq LIMIT :limit;

-- name: store_again
-- Stores finished messages again, with new seqs in their old order, at the end of their keys. They are
-- blocked if their key is. As in a claim: if any message of a key is blocked, its newest one is.
WITH wanted AS MATERIALIZED (
  SELECT nextval('{seq}') AS fresh, u.*
  FROM unnest(:origins::text[], :ids::text[], :lanes::smallint[])
    WITH ORDINALITY AS u (origin, id, lane, n)
), waiting AS MATERIALIZED (
  SELECT k.key FROM unnest(:keys::text[]) AS k (key)
  WHERE (SELECT p.available_at IS NOT NULL FROM {pending} p
         WHERE p.key BETWEEN k.key AND k.key AND p.consumer = :consumer
         ORDER BY p.key DESC, p.consumer DESC, p.seq DESC LIMIT 1)
     OR EXISTS (SELECT FROM {dead_letter} d
                WHERE d.key = k.key AND d.consumer || '' = :consumer AND d.blocks_key OFFSET 0)
)
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, replay, available_at)
SELECT i.consumer, w.lane, w.fresh, i.origin, i.message_id, i.type, i.version, i.key, i.payload,
       i.headers, i.source, i.coordinates, i.occurred_at, :replay::bigint,
       CASE WHEN i.key IN (SELECT key FROM waiting) THEN 'infinity'::timestamptz END
FROM wanted w
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = w.origin AND i.message_id = w.id
WHERE i.payload IS NOT NULL
  AND NOT EXISTS (SELECT FROM {pending} p WHERE p.seq = i.seq)
  AND NOT EXISTS (SELECT FROM {dead_letter} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
  AND NOT EXISTS (SELECT FROM {awaiting_sequence} e WHERE e.seq = i.seq AND e.consumer = i.consumer)
RETURNING seq;

-- name: drop_replayed_items
-- Deletes the messages that are stored now.
DELETE FROM {replay_item} WHERE replay = :replay AND seq = ANY (:seqs::bigint[]);

-- name: move_replay
-- Records the progress of a replay, and when it continues. A small delay is made up for.
UPDATE {replay} SET
  stored = stored + :stored, skipped = skipped + :skipped, cancelled = cancelled + :cancelled,
  due_at = greatest(due_at, clock_timestamp() - interval '2 seconds')
    + make_interval(secs => :rest),
  state = coalesce(:state::text, state),
  ended_at = CASE WHEN :state::text IS NOT NULL THEN clock_timestamp() END
WHERE id = :replay;

-- name: set_pace
-- Changes the pace of a replay from now on.
UPDATE {replay} SET pace = :pace::double precision, due_at = clock_timestamp()
WHERE consumer = :consumer AND name = :name AND state = 'running' RETURNING id;

-- name: cancel_replay
-- Begins to cancel a replay, unless it has ended.
UPDATE {replay} SET state = 'cancelling', due_at = clock_timestamp()
WHERE consumer = :consumer AND name = :name AND state IN ('running', 'stored') RETURNING id;

-- name: drop_items
-- Deletes the messages that a replay has not stored yet.
WITH gone AS (DELETE FROM {replay_item} WHERE replay = :replay RETURNING 1)
SELECT count(*) FROM gone;

-- name: replay_left
-- Some messages that a replay has stored and that have not run, and some of its dead letters.
SELECT * FROM (SELECT p.seq, NULL::bigint, p.key FROM {pending} p
               WHERE p.replay = :replay AND p.replay > 0 ORDER BY p.seq LIMIT :limit) stored
UNION ALL
SELECT * FROM (SELECT NULL::bigint, d.id, d.key FROM {dead_letter} d
               WHERE d.replay = :replay AND d.replay > 0 ORDER BY d.id LIMIT :limit) letters;

-- name: remove_replayed
-- Deletes messages of a cancelled replay, except those that a worker is running.
WITH gone AS (
  DELETE FROM {pending} WHERE seq = ANY (ARRAY(
    SELECT p.seq FROM {pending} p WHERE p.seq = ANY (:seqs::bigint[]) FOR UPDATE SKIP LOCKED
  )) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: remove_replayed_dead_letters
-- Deletes dead letters of a cancelled replay.
WITH gone AS (DELETE FROM {dead_letter} WHERE id = ANY (:ids::bigint[]) RETURNING 1)
SELECT count(*) FROM gone;

-- name: audit_replay
-- Records an operator's action on a replay.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, replay)
VALUES (:consumer, :action, :by, :why, :name, :replay);
