-- name: count_pending
-- What has to run: ready, retrying, parked, to be run alone. No more than so many rows are counted.
SELECT count(*) FILTER (WHERE available_at IS NULL),
       count(*) FILTER (WHERE available_at < 'infinity'),
       count(*) FILTER (WHERE available_at = 'infinity'),
       count(*) FILTER (WHERE alone)
FROM (SELECT available_at, alone FROM {pending} WHERE consumer = :consumer LIMIT :limit) p;

-- name: kept_house
-- Up to which time messages were forgotten, when somebody looked for the last time, and until when
-- nothing is, because something was restored.
SELECT nullif(purged_before, '-infinity'), kept_at, hold_until FROM {consumer}
WHERE consumer = :consumer;

-- name: count_early
-- How many messages wait for numbers, of how many keys, and since when the oldest number is missing.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {early} WHERE consumer = :consumer AND seq IS NOT NULL
                              LIMIT :limit) e),
       count(*), min(waiting_since)
FROM (SELECT waiting_since FROM {sequence} WHERE consumer = :consumer AND waiting_since IS NOT NULL
      LIMIT :limit) s;

-- name: early_of
-- What a message waits for that came early.
SELECT e.number, s.next FROM {early} e
JOIN {sequence} s ON s.consumer = e.consumer AND s.key = e.key AND s.epoch = e.epoch
WHERE e.consumer = :consumer AND e.seq = :seq;

-- name: oldest_pending
-- When the message arrived that waits for the longest time. Those of replays arrived long ago.
SELECT i.received_at
FROM (SELECT origin, message_id FROM {pending} WHERE consumer = :consumer AND replay = 0
      ORDER BY seq LIMIT 1) p
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = p.origin AND i.message_id = p.message_id;

-- name: count_dead
-- Dead letters and quarantine by reason, and how many keys wait for them.
SELECT state, reason, count(*), count(DISTINCT key) FILTER (WHERE parks)
FROM (SELECT state, reason, key, parks FROM {dead} WHERE consumer = :consumer LIMIT :limit) d
GROUP BY state, reason ORDER BY state, reason;

-- name: rates
-- Counters since a time.
SELECT coalesce(sum(received), 0)::bigint, coalesce(sum(done), 0)::bigint,
       coalesce(sum(duplicate), 0)::bigint, coalesce(sum(failed), 0)::bigint,
       coalesce(sum(dead), 0)::bigint, coalesce(sum(quarantined), 0)::bigint
FROM {minute}
WHERE consumer = :consumer AND minute > :earliest;

-- name: workers
-- Who drains.
SELECT name, batch, started_at, beat_at, until < clock_timestamp() FROM {worker}
WHERE consumer = :consumer ORDER BY name;

-- name: all_positions
-- How far each part of each source was read.
SELECT source, part, next, lag, settled, owner_name, owned_at, suspects, moved_at, until < clock_timestamp()
FROM {position} WHERE consumer = :consumer ORDER BY source, part;

-- name: messages
-- Messages that arrived within a time, the newest last.
SELECT * FROM (
  SELECT m.seq, m.origin, m.message_id, m.type, m.version, m.key, m.state, m.reason, m.attempts,
         m.received_at, m.processed_at, m.last_error
  FROM {message} m
  WHERE m.consumer = :consumer
    AND m.received_at > coalesce(:since::timestamptz, '-infinity')
    AND m.seq > :after
    AND (:state::text IS NULL OR m.state = :state)
    AND (:type::text IS NULL OR m.type = :type)
    AND (:key::text IS NULL OR m.key = :key)
  ORDER BY m.seq DESC LIMIT :limit
) newest ORDER BY seq;

-- name: message_named
-- Everything about a message. Its origins are looked up one by one: an index begins with them.
WITH RECURSIVE origins AS (
  SELECT min(origin) AS origin FROM {inbox} WHERE consumer = :consumer
  UNION ALL
  SELECT (SELECT min(i.origin) FROM {inbox} i WHERE i.consumer = :consumer AND i.origin > o.origin)
  FROM origins o WHERE o.origin IS NOT NULL
)
SELECT m.seq, m.origin, m.message_id, m.type, m.version, m.key, m.state, m.reason, m.attempts,
       m.received_at, m.processed_at, m.last_error,
       i.payload, i.headers::text, m.source, m.coordinates, m.occurred_at
FROM origins o
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = o.origin AND i.message_id = :id
JOIN {message} m ON m.consumer = i.consumer AND m.origin = i.origin AND m.message_id = i.message_id
WHERE :origin::text IS NULL OR o.origin = :origin;

-- name: attempts
-- The runs of a message.
SELECT replay, number, outcome, error, duration, worker, ended_at FROM {attempt}
WHERE consumer = :consumer AND origin = :origin AND message_id = :id ORDER BY id;

-- name: actions
-- What operators did to a message.
SELECT act, by_whom, why, replay, acted_at FROM {action}
WHERE consumer = :consumer AND origin = :origin AND message_id = :id ORDER BY id;

-- name: dead_groups
-- Dead letters by what they died of.
SELECT state, reason, coalesce(fingerprint, ''), min(type), count(*), min(id), max(id), max(died_at),
       min(error)
FROM {dead} WHERE consumer = :consumer GROUP BY 1, 2, 3 ORDER BY 5 DESC LIMIT :limit;

-- name: waits
-- What a pending message waits for: the one before it in its key, or a dead letter.
SELECT CASE WHEN p.available_at IS NULL THEN 'ready'
            WHEN p.available_at = 'infinity' THEN 'parked' ELSE 'retrying' END,
       CASE WHEN p.available_at < 'infinity' THEN p.available_at END, p.alone, p.deaths,
       (SELECT a.message_id FROM {pending} a WHERE a.key = p.key AND a.consumer = p.consumer
        AND a.seq < p.seq ORDER BY a.seq LIMIT 1),
       (SELECT d.id FROM {dead} d WHERE d.key = p.key AND d.consumer = p.consumer AND d.parks
        ORDER BY d.seq LIMIT 1)
FROM {pending} p WHERE p.consumer = :consumer AND p.seq = :seq;

-- name: letter_of
-- The number of a message among the dead letters.
SELECT id FROM {dead} WHERE consumer = :consumer AND seq = :seq;
