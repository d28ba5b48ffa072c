-- name: select_messages
-- The messages of a filter.
SELECT m.seq, m.key, m.origin, m.message_id, m.state, m.has_payload
FROM {message} m
WHERE m.consumer = :consumer
  AND (:origin IS NULL OR m.origin = :origin)
  AND (:type IS NULL OR m.type = :type)
  AND (:key IS NULL OR m.key = :key)
  AND m.received_at >= coalesce(:since, 0)
  AND m.received_at < coalesce(:until, 9223372036854775807);

-- name: select_messages_by_id
-- The messages of a filter, by ids. Origins are looked up one by one, because an index begins with
-- them.
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
       OR EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = m.origin
                  AND i.message_id = m.message_id AND i.headers IS NOT NULL)
       OR EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.message_id AND a.error IS NOT NULL)
FROM (SELECTED) m WHERE (:in_state IS NULL OR m.state = :in_state)
ORDER BY m.seq;

-- name: add_items
-- Lists the messages of a replay. SELECTED is one of the statements above.
INSERT INTO {replay_item} (replay, seq, consumer, key, origin, message_id)
SELECT :replay, m.seq, :consumer, m.key, m.origin, m.message_id
FROM (SELECTED) m WHERE m.state = :state AND m.has_payload;

-- name: make_replay
-- Creates a replay. No row if the name was used before.
INSERT INTO {replay} (consumer, name, state, by_whom, why, wanted, pace, due_at, began_at)
VALUES (:consumer, :name, 'running', :by, :why, :wanted, :pace, :now, :now)
ON CONFLICT (consumer, name) DO NOTHING
RETURNING id;

-- name: set_total
-- How many messages the replay has to store.
UPDATE {replay} SET total = (SELECT count(*) FROM {replay_item} WHERE replay = :replay)
WHERE id = :replay;

-- name: replays
-- Replays, the newest first, and the states of their messages.
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
-- Seconds until a replay is to be continued; NULL if there is none.
SELECT (min(due_at) - :now) / 1000000.0
FROM {replay} WHERE consumer = :consumer AND state IN ('running', 'cancelling');

-- name: lock_replay
-- The next replay to continue, cancellations first.
SELECT id, state, pace FROM {replay}
WHERE consumer = :consumer AND state IN ('running', 'cancelling') AND due_at <= :now
ORDER BY state, due_at, id LIMIT 1;

-- name: count_replaying
-- How many messages of a replay are ready to run. Counts at most :limit.
SELECT count(*) FROM (
  SELECT 1 FROM {pending} WHERE replay = :replay AND replay > 0 AND available_at IS NULL LIMIT :limit
);

-- name: count_replayed
-- How many messages of a replay are unfinished. Counts at most :limit.
SELECT count(*) FROM (
  SELECT 1 FROM {pending} WHERE replay = :replay AND replay > 0 LIMIT :limit
);

-- name: next_items
-- The next messages that a replay stores, in their old order.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay ORDER BY seq LIMIT :limit;

-- name: items_of_keys
-- More messages of some keys that a replay stores, in their old order.
SELECT seq, key, origin, message_id FROM {replay_item}
WHERE replay = :replay AND key IN (SELECT value FROM json_each(:keys)) AND seq > :after
ORDER BY seq LIMIT :limit;

-- name: store_again
-- Stores a finished message again. One with a key goes to the end of its key, and is blocked until
-- release runs.
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
-- How many messages were stored with these seqs.
SELECT count(*) FROM {pending} WHERE seq >= :first;

-- name: drop_replayed_items
-- Deletes the messages that are stored now.
DELETE FROM {replay_item} WHERE replay = :replay AND seq IN (SELECT value FROM json_each(:seqs));

-- name: move_replay
-- Records the progress of a replay, and when it continues. A small delay is made up for.
UPDATE {replay} SET
  stored = stored + :stored, skipped = skipped + :skipped, cancelled = cancelled + :cancelled,
  due_at = max(due_at, :now - 2000000) + (:due - :now), state = coalesce(:state, state),
  ended_at = CASE WHEN :state IS NOT NULL THEN :now END
WHERE id = :replay;

-- name: set_pace
-- Changes the pace of a replay from now on.
UPDATE {replay} SET pace = :pace, due_at = :now
WHERE consumer = :consumer AND name = :name AND state = 'running' RETURNING id;

-- name: cancel_replay
-- Begins to cancel a replay, unless it has ended.
UPDATE {replay} SET state = 'cancelling', due_at = :now
WHERE consumer = :consumer AND name = :name AND state IN ('running', 'stored') RETURNING id;

-- name: count_items
-- How many messages a replay has not stored yet.
SELECT count(*) FROM {replay_item} WHERE replay = :replay;

-- name: drop_items
-- Deletes the messages that a replay has not stored yet.
DELETE FROM {replay_item} WHERE replay = :replay;

-- name: replay_left
-- Some messages that a replay has stored and that have not run, and some of its dead letters.
SELECT * FROM (SELECT p.seq, NULL, p.key FROM {pending} p
               WHERE p.replay = :replay AND p.replay > 0 ORDER BY p.seq LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT NULL, d.id, d.key FROM {dead_letter} d
               WHERE d.replay = :replay AND d.replay > 0 ORDER BY d.id LIMIT :limit);

-- name: remove_replayed
-- Deletes messages of a cancelled replay.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: remove_replayed_dead_letters
-- Deletes dead letters of a cancelled replay.
DELETE FROM {dead_letter} WHERE id IN (SELECT value FROM json_each(:ids));

-- name: audit_replay
-- Records an operator's action on a replay.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, replay, acted_at)
VALUES (:consumer, :action, :by, :why, :name, :replay, :now);
