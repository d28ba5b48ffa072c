-- name: replay_wanted
-- What a replay is to run.
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM {message} m
WHERE m.consumer = :consumer
  AND (:origin::text IS NULL OR m.origin = :origin)
  AND (:type::text IS NULL OR m.type = :type)
  AND (:key::text IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since::timestamptz, '-infinity')
  AND m.received_at < coalesce(:until::timestamptz, 'infinity');

-- name: replay_named
-- The same by ids. Their origins are looked up one by one: an index begins with them.
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
-- How many messages of the past could be replayed; PAST is one of the statements above.
SELECT count(*) FILTER (WHERE m.state = :state AND m.has_payload),
       count(*) FILTER (WHERE m.state = :state AND NOT m.has_payload),
       count(*) FILTER (WHERE m.state <> :state)
FROM (PAST) m;

-- name: find_messages
-- Messages of the past, in the order of their numbers, and whether anything of them is to be erased;
-- PAST is one of the statements above. What is unfinished has a payload elsewhere.
SELECT m.key, m.origin, m.message_id,
       m.has_payload OR m.state NOT IN ('done', 'discarded')
       OR EXISTS (SELECT FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = m.origin
                  AND i.message_id = m.message_id AND i.headers IS NOT NULL)
       OR EXISTS (SELECT FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.message_id AND a.error IS NOT NULL)
FROM (PAST) m ORDER BY m.seq;

-- name: note_items
-- Note what is to be replayed; PAST is one of the statements above.
INSERT INTO {replay_item} (replay, seq, consumer, key, origin, message_id)
SELECT :replay::bigint, m.seq, :consumer::text, m.key, m.origin, m.message_id
FROM (PAST) m WHERE m.state = :state AND m.has_payload;

-- name: stop_purging
-- What is noted from now on is seen by whoever forgets messages later, and nobody is at it now: a
-- message that is forgotten while it is replayed would leave its runs behind for ever.
SELECT pg_advisory_xact_lock(:lock::bigint);

-- name: make_replay
-- A new replay, or none where the name was used before.
INSERT INTO {replay} (consumer, name, state, by_whom, why, wanted, pace)
VALUES (:consumer, :name, 'running', :by, :why, :wanted::json, :pace::double precision)
ON CONFLICT (consumer, name) DO NOTHING
RETURNING id;

-- name: set_total
-- How much there is to do.
UPDATE {replay} SET total = (SELECT count(*) FROM {replay_item} WHERE replay = :replay)
WHERE id = :replay;

-- name: replays
-- Replays, the newest first, and what became of their messages.
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
-- In how many seconds a replay is to be gone on with; NULL where there is none.
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::double precision
FROM {replay} WHERE consumer = :consumer AND state IN ('running', 'cancelling');

-- name: lock_replay
-- What is to be gone on with, cancels first; what somebody else is at is left to him.
SELECT id, state, pace FROM {replay}
WHERE consumer = :consumer AND state IN ('running', 'cancelling') AND due_at <= clock_timestamp()
ORDER BY state, due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: count_replaying
-- How many of a replay's messages are ready to run; no more than so many are counted.
SELECT count(*) FROM (
  SELECT FROM {pending} WHERE replay = :replay AND replay > 0 AND available_at IS NULL LIMIT :limit
) p;

-- name: count_replayed
-- How many of a replay's messages are unfinished; no more than so many are counted.
SELECT count(*) FROM (
  SELECT FROM {pending} WHERE replay = :replay AND replay > 0 LIMIT :limit
) p;

-- name: limit_lock_wait
-- Who waits for locks of keys, and keeps others waiting meanwhile, does not wait for long; and if he
-- is stopped, he is ended. Messages are looked up one by one, whatever was known of the tables when
-- the plan was made.
SELECT set_config('lock_timeout', '1s', true), set_config('enable_seqscan', 'off', true),
       {fence}('30s');

-- name: next_items
-- What a replay is to store next, in the order of old.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay ORDER BY seq LIMIT :limit;

-- name: items_of_keys
-- What else a replay is to store of some keys, in the order of old.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay AND key = ANY (:keys::text[]) AND seq > :after ORDER BY seq LIMIT :limit;

-- name: store_again
-- Old messages arrive anew, if they are finished: with new numbers in the order of old, at the end of
-- their keys. They wait where their key does: as in a claim, if any of a key waits, its newest does.
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
-- These are stored.
DELETE FROM {replay_item} WHERE replay = :replay AND seq = ANY (:seqs::bigint[]);

-- name: move_replay
-- How far a replay is, and when it goes on; what was a little late is made up for.
UPDATE {replay} SET
  stored = stored + :stored, skipped = skipped + :skipped, cancelled = cancelled + :cancelled,
  due_at = greatest(due_at, clock_timestamp() - interval '2 seconds')
    + make_interval(secs => :rest),
  state = coalesce(:state::text, state),
  ended_at = CASE WHEN :state::text IS NOT NULL THEN clock_timestamp() END
WHERE id = :replay;

-- name: set_pace
-- A replay goes on at another pace, from now on.
UPDATE {replay} SET pace = :pace::double precision, due_at = clock_timestamp()
WHERE consumer = :consumer AND name = :name AND state = 'running' RETURNING id;

-- name: cancel_replay
-- A replay is to be cancelled, if it is not over.
UPDATE {replay} SET state = 'cancelling', due_at = clock_timestamp()
WHERE consumer = :consumer AND name = :name AND state IN ('running', 'stored') RETURNING id;

-- name: drop_items
-- What was not stored yet never is.
WITH gone AS (DELETE FROM {replay_item} WHERE replay = :replay RETURNING 1)
SELECT count(*) FROM gone;

-- name: replay_left
-- Some of what a replay has stored and has not run, and of its dead letters.
SELECT * FROM (SELECT p.seq, NULL::bigint, p.key FROM {pending} p
               WHERE p.replay = :replay AND p.replay > 0 ORDER BY p.seq LIMIT :limit) stored
UNION ALL
SELECT * FROM (SELECT NULL::bigint, d.id, d.key FROM {dead_letter} d
               WHERE d.replay = :replay AND d.replay > 0 ORDER BY d.id LIMIT :limit) letters;

-- name: take_back
-- Take back what nobody is running at the moment.
WITH gone AS (
  DELETE FROM {pending} WHERE seq = ANY (ARRAY(
    SELECT p.seq FROM {pending} p WHERE p.seq = ANY (:seqs::bigint[]) FOR UPDATE SKIP LOCKED
  )) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: take_back_dead_letters
-- Take back dead letters.
WITH gone AS (DELETE FROM {dead_letter} WHERE id = ANY (:ids::bigint[]) RETURNING 1)
SELECT count(*) FROM gone;

-- name: audit_replay
-- What an operator did to a replay.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, replay)
VALUES (:consumer, :action, :by, :why, :name, :replay);
