-- name: count_pending
-- Counts pending messages: ready, to be retried, blocked, isolated. Counts at most :limit rows.
SELECT count(*) FILTER (WHERE available_at IS NULL),
       count(*) FILTER (WHERE available_at < 9223372036854775807),
       count(*) FILTER (WHERE available_at = 9223372036854775807),
       count(*) FILTER (WHERE isolated)
FROM (SELECT available_at, isolated FROM {pending} WHERE consumer = :consumer LIMIT :limit) p;

-- name: purge_state
-- The watermark, when the last purge ran, and until when purging is paused by a restore.
SELECT nullif(purged_before, 0), last_purge_at, purge_paused_until FROM {consumer}
WHERE consumer = :consumer;

-- name: count_awaiting
-- How many messages await their sequence, of how many keys, and since when the oldest number is
-- missing.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {awaiting_sequence} WHERE consumer = :consumer AND seq IS NOT NULL
                              LIMIT :limit) e),
       count(*), min(waiting_since)
FROM (SELECT waiting_since FROM {sequence} WHERE consumer = :consumer AND waiting_since IS NOT NULL
      LIMIT :limit) s;

-- name: awaiting_of_message
-- The sequence number of a waiting message, and the number that its key waits for.
SELECT e.number, s.next FROM {awaiting_sequence} e
JOIN {sequence} s ON s.consumer = e.consumer AND s.key = e.key AND s.epoch = e.epoch
WHERE e.consumer = :consumer AND e.seq = :seq;

-- name: oldest_pending
-- When the message that waits longest arrived. Replayed messages arrived long ago and do not count.
SELECT i.received_at
FROM (SELECT origin, message_id FROM {pending} WHERE consumer = :consumer AND replay = 0
      ORDER BY seq LIMIT 1) p
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = p.origin AND i.message_id = p.message_id;

-- name: oldest_ready
-- When the ready message that waits longest arrived. Replayed messages do not count.
SELECT i.received_at
FROM (SELECT origin, message_id FROM {pending}
      WHERE consumer = :consumer AND available_at IS NULL AND replay = 0 ORDER BY seq LIMIT 1) p
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = p.origin AND i.message_id = p.message_id;

-- name: count_dead_letters
-- Counts dead letters and quarantined deliveries by reason, and the keys they block.
SELECT state, reason, count(*), count(DISTINCT key) FILTER (WHERE blocks_key)
FROM (SELECT state, reason, key, blocks_key FROM {dead_letter} WHERE consumer = :consumer LIMIT :limit) d
GROUP BY state, reason ORDER BY state, reason;

-- name: rates
-- Counters since a time. Claims in callers' transactions are counted by their rows, at most a million.
SELECT coalesce(sum(received), 0) + c.claimed, coalesce(sum(done), 0) + c.claimed,
       coalesce(sum(duplicate), 0), coalesce(sum(failed), 0),
       coalesce(sum(dead), 0), coalesce(sum(quarantined), 0)
FROM (SELECT count(*) AS claimed
      FROM (SELECT 1 FROM {inbox} WHERE consumer = :consumer AND by_caller
              AND received_at >= (:earliest / 60000000 + 1) * 60000000
            LIMIT 1000000)) c
LEFT JOIN {minute_counter} m ON m.consumer = :consumer AND m.minute > :earliest
GROUP BY c.claimed;

-- name: workers
-- The workers: whether each is lost, and whether no live worker has taken over from it.
SELECT w.name, w.batch, w.started_at, w.heartbeat_at, w.is_lost,
       w.is_lost AND w.taken_over_at IS NULL AND NOT EXISTS (
         SELECT 1 FROM {worker} o
         WHERE o.consumer = :consumer AND o.until >= :now AND o.taken_over_at IS NULL)
FROM (SELECT *, until < :now OR taken_over_at IS NOT NULL AS is_lost FROM {worker}) w
WHERE w.consumer = :consumer ORDER BY w.name;

-- name: all_positions
-- How far each partition of each source was read.
SELECT source, partition, next, lag, seen_at, settled, owner_name, owned_at, suspects, skipped,
       skipped_at, skipped_why, moved_at, until < :now
FROM {position} WHERE consumer = :consumer ORDER BY source, partition;

-- name: outages
-- Workers that cannot read their source. A row that was not renewed belongs to a crashed worker.
SELECT source, worker, why, since FROM {outage}
WHERE consumer = :consumer AND until >= :now ORDER BY source, worker;

-- name: messages
-- Messages that match a filter, in order of arrival: the last ones (DIRECTION is DESC), or the first ones
-- after a seq (ASC).
SELECT * FROM (
  SELECT m.seq, m.origin, m.message_id, m.type, m.version, m.key, m.state, m.reason, m.attempts,
         m.received_at, m.processed_at, m.last_error
  FROM {message} m
  WHERE m.consumer = :consumer
    AND m.received_at >= coalesce(:since, 0)
    AND m.received_at < coalesce(:until, 9223372036854775807)
    AND m.seq > :after
    AND (:states IS NULL OR m.state IN (SELECT value FROM json_each(:states)))
    AND (:ids IS NULL OR m.message_id IN (SELECT value FROM json_each(:ids)))
    AND (:origin IS NULL OR m.origin = :origin)
    AND (:type IS NULL OR m.type = :type)
    AND (:key IS NULL OR m.key = :key)
    AND (:reason IS NULL OR m.reason = :reason)
    AND (:fingerprint IS NULL OR EXISTS (
      SELECT 1 FROM {dead_letter} d
      WHERE d.seq = m.seq AND d.consumer = :consumer AND d.fingerprint = :fingerprint))
  ORDER BY m.seq DIRECTION LIMIT :limit
) found ORDER BY seq;

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
       coalesce(i.payload, p.payload, d.payload, e.payload),
       coalesce(i.headers, p.headers, d.headers, e.headers), m.source, m.coordinates, m.occurred_at
FROM origins o
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = o.origin AND i.message_id = :id
JOIN {message} m ON m.consumer = i.consumer AND m.origin = i.origin AND m.message_id = i.message_id
LEFT JOIN {pending} p ON p.consumer = i.consumer AND p.seq = i.seq
LEFT JOIN {dead_letter} d ON d.consumer = i.consumer AND d.seq = i.seq
LEFT JOIN {awaiting_sequence} e ON e.consumer = i.consumer AND e.seq = i.seq
WHERE :origin IS NULL OR o.origin = :origin;

-- name: attempts
-- The attempts of a message.
SELECT replay, number, outcome, error, duration, worker, ended_at FROM {attempt}
WHERE consumer = :consumer AND origin = :origin AND message_id = :id ORDER BY id;

-- name: audits
-- Operators' actions on a message.
SELECT action, by_whom, why, replay, acted_at FROM {audit}
WHERE consumer = :consumer AND origin = :origin AND message_id = :id ORDER BY id;

-- name: dead_letter_groups
-- Dead letters grouped by their error. MATCHING is the statement matching_dead_letters.
SELECT state, reason, coalesce(fingerprint, ''), min(type), count(*), min(id), max(id), max(dead_at),
       min(error)
FROM (MATCHING) d WHERE (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
GROUP BY 1, 2, 3 ORDER BY 5 DESC LIMIT :limit;

-- name: fingerprints
-- The fingerprints of dead letters that begin with a prefix, and one error of each.
SELECT fingerprint, min(error) FROM {dead_letter}
WHERE consumer = :consumer AND substr(fingerprint, 1, length(:prefix)) = :prefix
GROUP BY fingerprint ORDER BY fingerprint LIMIT :limit;

-- name: waits
-- What a pending message waits for: an earlier message of its key, or a dead letter.
SELECT CASE WHEN p.available_at IS NULL THEN 'ready'
            WHEN p.available_at = 9223372036854775807 THEN 'blocked' ELSE 'retrying' END,
       CASE WHEN p.available_at < 9223372036854775807 THEN p.available_at END, p.isolated, p.crashes,
       (SELECT a.message_id FROM {pending} a WHERE a.key = p.key AND a.consumer = p.consumer
        AND a.seq < p.seq ORDER BY a.seq LIMIT 1),
       (SELECT d.id FROM {dead_letter} d WHERE d.key = p.key AND d.consumer = p.consumer AND d.blocks_key
        ORDER BY d.seq LIMIT 1)
FROM {pending} p WHERE p.consumer = :consumer AND p.seq = :seq;

-- name: dead_letter_of
-- The id of a message's dead letter.
SELECT id FROM {dead_letter} WHERE consumer = :consumer AND seq = :seq;
