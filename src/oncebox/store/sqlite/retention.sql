-- name: last_arrival
-- When anything new arrived for the last time, by the minute.
SELECT minute FROM {minute} WHERE consumer = :consumer AND received > duplicate
ORDER BY minute DESC LIMIT 1;

-- name: oldest_arrival
-- When the oldest of what arrived since a time came into being. +consumer: not by the index of ids,
-- which begins with the consumer and would be read whole, but by that of times; so below.
SELECT min(minted_at) FROM {inbox} WHERE +consumer = :consumer AND received_at >= :since;

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
  SELECT 1 FROM {inbox} WHERE +consumer = :consumer AND received_at < :mark LIMIT :limit
) i;

-- name: old_windows
-- When old messages arrived: the first of every 500.
SELECT received_at FROM (
  SELECT received_at, row_number() OVER (ORDER BY received_at) AS n
  FROM {inbox} WHERE +consumer = :consumer AND received_at < :mark
) WHERE n % 500 = 1 ORDER BY received_at;

-- name: old_size
-- How many old messages there are within a window of time, and the bytes of their payloads.
SELECT count(*), coalesce(sum(length(payload)), 0) FROM {inbox}
WHERE received_at >= :low AND received_at < :high AND +consumer = :consumer;

-- name: old_messages
-- What is old and finished within a window of time.
SELECT f.seq, f.origin, f.message_id, f.type, f.version, f.received_at, f.key, f.payload,
       f.content_hash, f.headers, f.source, f.coordinates, f.occurred_at, f.minted_at
FROM {finished} f
WHERE f.received_at >= :low AND f.received_at < :high AND +f.consumer = :consumer
  AND (f.minted_at IS NULL OR f.minted_at < :mark) AND f.seq > :after
ORDER BY f.seq LIMIT :limit;

-- name: old_ones
-- The same, as far as needed to forget it; nothing as long as what was restored is to be kept.
SELECT f.seq, f.origin, f.message_id FROM {finished} f
WHERE f.received_at >= :low AND f.received_at < :high AND +f.consumer = :consumer
  AND (f.minted_at IS NULL OR f.minted_at < :mark)
  AND NOT EXISTS (SELECT 1 FROM {consumer} c WHERE c.consumer = :consumer AND c.hold_until > :now);

-- name: unchanged
-- Which of these messages that are archived have not changed since.
SELECT f.seq, f.origin, f.message_id
FROM json_each(:messages) w
CROSS JOIN {finished} f ON f.consumer = :consumer AND f.origin = json_extract(w.value, '$[0]')
  AND f.message_id = json_extract(w.value, '$[1]')
WHERE (f.payload IS NOT NULL) = json_extract(w.value, '$[3]')
  AND json_extract(w.value, '$[2]') = (SELECT count(*) FROM {attempt} a WHERE a.consumer = :consumer
                       AND a.origin = f.origin AND a.message_id = f.message_id)
  AND NOT EXISTS (SELECT 1 FROM {consumer} c WHERE c.consumer = :consumer AND c.hold_until > :now);

-- name: runs_of
-- The attempts of some messages.
SELECT a.origin, a.message_id, a.number, a.outcome, a.worker, a.ended_at, a.replay, a.error,
       a.fingerprint, a.duration
FROM json_each(:messages) u
CROSS JOIN {attempt} a ON a.consumer = :consumer AND a.origin = json_extract(u.value, '$[0]')
  AND a.message_id = json_extract(u.value, '$[1]')
ORDER BY a.id;

-- name: forget
-- Forget some messages.
DELETE FROM {inbox} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: forget_attempts
-- Forget the runs of some messages.
DELETE FROM {attempt} WHERE consumer = :consumer AND (origin, message_id) IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:messages)
);

-- name: hold_until
-- Until when nothing is forgotten, if that is still to come.
SELECT hold_until FROM {consumer} WHERE consumer = :consumer AND hold_until > :now;

-- name: hold
-- Nothing is forgotten for some time.
INSERT INTO {consumer} AS c (consumer, purged_before, hold_until) VALUES (:consumer, 0, :due)
ON CONFLICT (consumer) DO UPDATE SET
  hold_until = max(coalesce(c.hold_until, 0), excluded.hold_until);

-- name: last_seq
-- The last arrival number that was drawn, and whether there are any messages.
SELECT last, EXISTS (SELECT 1 FROM {inbox}) FROM {seq};

-- name: raise_seq
-- Numbers go on behind those of messages that are restored.
UPDATE {seq} SET last = :last RETURNING last;

-- name: taken_numbers
-- Whether other messages have the numbers of some that are to be restored.
SELECT 1 FROM json_each(:messages) u
CROSS JOIN {inbox} i ON i.seq = json_extract(u.value, '$[2]')
WHERE NOT (i.consumer = :consumer AND i.origin = json_extract(u.value, '$[0]')
           AND i.message_id = json_extract(u.value, '$[1]'))
LIMIT 1;

-- name: restore
-- Bring a message back, unless it is there. What was erased since stays erased.
INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, minted_at, received_at)
SELECT :consumer, :origin, :id, :seq, :type, :version, :key,
       CASE WHEN NOT e.erased THEN :payload END, :hash,
       CASE WHEN NOT e.erased THEN :headers END, :source, :coordinates, :occurred, :minted,
       :received
FROM (SELECT EXISTS (SELECT 1 FROM {action} a WHERE a.consumer = :consumer AND a.origin = :origin
                     AND a.message_id = :id AND a.act = 'erase') AS erased) e
WHERE true
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING origin, message_id;

-- name: restore_runs
-- Bring an attempt back. What was erased since stays erased.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker, ended_at)
VALUES (:consumer, :origin, :id, :replay, :number, :outcome,
        CASE WHEN NOT EXISTS (SELECT 1 FROM {action} a WHERE a.consumer = :consumer
                              AND a.origin = :origin AND a.message_id = :id AND a.act = 'erase')
             THEN :error END,
        :fingerprint, :duration, :worker, :ended_at);

-- name: erase
-- Erase payload and headers of finished messages.
UPDATE {inbox} SET payload = NULL, headers = NULL
WHERE seq IN (
  SELECT f.seq FROM json_each(:messages) u
  CROSS JOIN {finished} f ON f.consumer = :consumer AND f.origin = json_extract(u.value, '$[0]')
    AND f.message_id = json_extract(u.value, '$[1]'))
RETURNING origin, message_id;

-- name: erase_runs
-- Erase what errors have told of messages.
UPDATE {attempt} SET error = NULL WHERE consumer = :consumer AND (origin, message_id) IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:messages)
);

-- name: act_on_messages
-- What an operator did to messages.
INSERT INTO {action} (consumer, act, by_whom, why, origin, message_id, acted_at)
SELECT :consumer, :act, :by, :why, json_extract(value, '$[0]'), json_extract(value, '$[1]'), :now FROM json_each(:messages);

-- name: strange_letters
-- Quarantined deliveries that may be about the same, and were never claimed.
SELECT count(*) FROM {dead} WHERE consumer = :consumer AND seq IS NULL
  AND (key = :key OR message_id IN (SELECT value FROM json_each(:ids)));

-- name: forget_minutes
-- Counters are kept as long as messages.
DELETE FROM {minute} WHERE consumer = :consumer AND minute < :mark;
