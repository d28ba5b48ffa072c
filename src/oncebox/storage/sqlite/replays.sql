-- name: replay_wanted
-- What a replay is to run.
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM {message} m
WHERE m.consumer = :consumer
  AND (:origin IS NULL OR m.origin = :origin)
  AND (:type IS NULL OR m.type = :type)
  AND (:key IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since, 0)
  AND m.received_at < coalesce(:until, 9223372036854775807);

-- name: replay_named
-- The same by ids. Their origins are looked up one by one: an index begins with them.
WITH RECURSIVE origins (origin) AS (
  SELECT min(origin) FROM {inbox} WHERE consumer = :consumer
  UNION ALL
  SELECT (SELECT min(i.origin) FROM {inbox} i WHERE i.consumer = :consumer AND i.origin > o.origin)
  FROM origins o WHERE o.origin IS NOT NULL
)
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM origins o
CROSS JOIN json_each(:ids) u
JOIN {message} m ON m.consumer = :consumer AND m.origin = o.origin AND m.message_id = u.value
WHERE (:origin IS NULL OR m.origin = :origin)
  AND (:type IS NULL OR m.type = :type)
  AND (:key IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since, 0)
  AND m.received_at < coalesce(:until, 9223372036854775807);

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
       OR EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = m.origin
                  AND i.message_id = m.message_id AND i.headers IS NOT NULL)
       OR EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.message_id AND a.error IS NOT NULL)
FROM (PAST) m ORDER BY m.seq;

-- name: note_items
-- Note what is to be replayed; PAST is one of the statements above.
INSERT INTO {replay_item} (replay, seq, consumer, key, origin, message_id)
SELECT :replay, m.seq, :consumer, m.key, m.origin, m.message_id
FROM (PAST) m WHERE m.state = :state AND m.has_payload;

-- name: make_replay
-- A new replay, or none where the name was used before.
INSERT INTO {replay} (consumer, name, state, by_whom, why, wanted, pace, due_at, began_at)
VALUES (:consumer, :name, 'running', :by, :why, :wanted, :pace, :now, :now)
ON CONFLICT (consumer, name) DO NOTHING
RETURNING id;

-- name: set_total
-- How much there is to do.
UPDATE {replay} SET total = (SELECT count(*) FROM {replay_item} WHERE replay = :replay)
WHERE id = :replay;

-- name: replays
-- Replays, the newest first, and what became of their messages.
SELECT r.id, r.name, r.state, r.by_whom, r.why, r.wanted, r.pace, r.total, r.stored, r.skipped,
       r.cancelled,
       (SELECT count(*) FROM {pending} p WHERE p.replay = r.id AND p.replay > 0),
       (SELECT count(*) FROM {dead_letter} d WHERE d.replay = r.id AND d.replay > 0),
       (SELECT count(*) FROM {audit} a WHERE a.replay = r.id AND a.replay > 0 AND a.action = 'discard'),
       r.began_at, r.ended_at
FROM {replay} r
WHERE r.consumer = :consumer AND (:name IS NULL OR r.name = :name)
ORDER BY r.id DESC LIMIT :limit;

-- name: next_replay
-- In how many seconds a replay is to be gone on with; NULL where there is none.
SELECT (min(due_at) - :now) / 1000000.0
FROM {replay} WHERE consumer = :consumer AND state IN ('running', 'cancelling');

-- name: lock_replay
-- What is to be gone on with, cancels first.
SELECT id, state, pace FROM {replay}
WHERE consumer = :consumer AND state IN ('running', 'cancelling') AND due_at <= :now
ORDER BY state, due_at, id LIMIT 1;

-- name: count_replaying
-- How many of a replay's messages are ready to run; no more than so many are counted.
SELECT count(*) FROM (
  SELECT 1 FROM {pending} WHERE replay = :replay AND replay > 0 AND available_at IS NULL LIMIT :limit
);

-- name: count_replayed
-- How many of a replay's messages are unfinished; no more than so many are counted.
SELECT count(*) FROM (
  SELECT 1 FROM {pending} WHERE replay = :replay AND replay > 0 LIMIT :limit
);

-- name: next_items
-- What a replay is to store next, in the order of old.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay ORDER BY seq LIMIT :limit;

-- name: items_of_keys
-- What else a replay is to store of some keys, in the order of old.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay AND key IN (SELECT value FROM json_each(:keys)) AND seq > :after
ORDER BY seq LIMIT :limit;

-- name: store_again
-- An old message arrives anew, if it is finished. One with a key comes to its end, to be released in
-- order.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, replay, available_at)
SELECT i.consumer, :lane, :fresh, i.origin, i.message_id, i.type, i.version, i.key, i.payload,
       i.headers, i.source, i.coordinates, i.occurred_at, :replay,
       CASE WHEN i.key IS NOT NULL THEN 9223372036854775807 END
FROM {inbox} i
WHERE i.consumer = :consumer AND i.origin = :origin AND i.message_id = :id
  AND i.payload IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = i.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {awaiting_sequence} e WHERE e.seq = i.seq AND e.consumer = i.consumer);

-- name: count_from
-- How many were stored with these numbers.
SELECT count(*) FROM {pending} WHERE seq >= :first;

-- name: drop_replayed_items
-- These are stored.
DELETE FROM {replay_item} WHERE replay = :replay AND seq IN (SELECT value FROM json_each(:seqs));

-- name: move_replay
-- How far a replay is, and when it goes on; what was a little late is made up for.
UPDATE {replay} SET
  stored = stored + :stored, skipped = skipped + :skipped, cancelled = cancelled + :cancelled,
  due_at = max(due_at, :now - 2000000) + (:due - :now), state = coalesce(:state, state),
  ended_at = CASE WHEN :state IS NOT NULL THEN :now END
WHERE id = :replay;

-- name: set_pace
-- A replay goes on at another pace, from now on.
UPDATE {replay} SET pace = :pace, due_at = :now
WHERE consumer = :consumer AND name = :name AND state = 'running' RETURNING id;

-- name: cancel_replay
-- A replay is to be cancelled, if it is not over.
UPDATE {replay} SET state = 'cancelling', due_at = :now
WHERE consumer = :consumer AND name = :name AND state IN ('running', 'stored') RETURNING id;

-- name: count_items
-- What was not stored yet.
SELECT count(*) FROM {replay_item} WHERE replay = :replay;

-- name: drop_items
-- What was not stored yet never is.
DELETE FROM {replay_item} WHERE replay = :replay;

-- name: replay_left
-- Some of what a replay has stored and has not run, and of its dead letters.
SELECT * FROM (SELECT p.seq, NULL, p.key FROM {pending} p
               WHERE p.replay = :replay AND p.replay > 0 ORDER BY p.seq LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT NULL, d.id, d.key FROM {dead_letter} d
               WHERE d.replay = :replay AND d.replay > 0 ORDER BY d.id LIMIT :limit);

-- name: take_back
-- Take back what was stored.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: take_back_dead_letters
-- Take back dead letters.
DELETE FROM {dead_letter} WHERE id IN (SELECT value FROM json_each(:ids));

-- name: audit_replay
-- What an operator did to a replay.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, replay, acted_at)
VALUES (:consumer, :action, :by, :why, :name, :replay, :now);
