-- name: last_arrival
-- The minute of the last new message. Claims in callers' transactions write no counter.
SELECT max(
  coalesce((SELECT minute FROM {minute_counter} WHERE consumer = :consumer AND received > duplicate
            ORDER BY minute DESC LIMIT 1), claimed_at),
  coalesce(claimed_at, 0))
FROM (SELECT max(received_at) / 60000000 * 60000000 AS claimed_at FROM {inbox}
      WHERE consumer = :consumer AND by_caller);

-- name: oldest_arrival
-- When the oldest of the messages that arrived since a time was produced. +consumer, here and below:
-- use the index of times. The index of ids begins with the consumer and would be read completely.
SELECT min(produced_at) FROM {inbox} WHERE +consumer = :consumer AND received_at >= :since;

-- name: partition_progress
-- The progress of every partition of every source.
SELECT source || ' ' || partition, lag, owner IS NOT NULL AND until >= :now, seen_at, moved_at
FROM {position} WHERE consumer = :consumer ORDER BY source, partition;

-- name: set_watermark
-- Moves the watermark, only forward.
INSERT INTO {consumer} AS c (consumer, purged_before) VALUES (:consumer, :watermark)
ON CONFLICT (consumer) DO UPDATE SET purged_before = max(c.purged_before, excluded.purged_before)
RETURNING purged_before;

-- name: take_purge_turn
-- Returns a row for the first caller after a time: this caller runs the purge.
INSERT INTO {consumer} AS c (consumer, purged_before, last_purge_at) VALUES (:consumer, 0, :now)
ON CONFLICT (consumer) DO UPDATE SET last_purge_at = :now
WHERE c.last_purge_at IS NULL OR c.last_purge_at < :before
RETURNING 1;

-- name: count_old
-- How many messages are older than a watermark, finished or not.
SELECT count(*) FROM (
  SELECT 1 FROM {inbox} WHERE +consumer = :consumer AND received_at < :watermark LIMIT :limit
) i;

-- name: old_windows
-- The times of arrival of old messages: the first of every 500.
SELECT received_at FROM (
  SELECT received_at, row_number() OVER (ORDER BY received_at) AS n
  FROM {inbox} WHERE +consumer = :consumer AND received_at < :watermark
) WHERE n % 500 = 1 ORDER BY received_at;

-- name: old_size
-- How many old messages are in a time span, and the bytes of their payloads.
SELECT count(*), coalesce(sum(length(payload)), 0) FROM {inbox}
WHERE received_at >= :low AND received_at < :high AND +consumer = :consumer;

-- name: old_messages
-- Old finished messages in a time span.
SELECT f.seq, f.origin, f.message_id, f.type, f.version, f.received_at, f.key, f.payload,
       f.content_hash, f.headers, f.source, f.coordinates, f.occurred_at, f.produced_at
FROM {finished} f
WHERE f.received_at >= :low AND f.received_at < :high AND +f.consumer = :consumer
  AND (f.produced_at IS NULL OR f.produced_at < :watermark) AND f.seq > :after
ORDER BY f.seq LIMIT :limit;

-- name: purgeable
-- Names of old finished messages in a time span. None while purging is paused.
SELECT f.seq, f.origin, f.message_id FROM {finished} f
WHERE f.received_at >= :low AND f.received_at < :high AND +f.consumer = :consumer
  AND (f.produced_at IS NULL OR f.produced_at < :watermark)
  AND NOT EXISTS (SELECT 1 FROM {consumer} c WHERE c.consumer = :consumer AND c.purge_paused_until > :now);

-- name: unchanged
-- Which of these archived messages have not changed since.
SELECT f.seq, f.origin, f.message_id
FROM json_each(:messages) w
CROSS JOIN {finished} f ON f.consumer = :consumer AND f.origin = json_extract(w.value, '$[0]')
  AND f.message_id = json_extract(w.value, '$[1]')
WHERE (f.payload IS NOT NULL) = json_extract(w.value, '$[3]')
  AND json_extract(w.value, '$[2]') = (SELECT count(*) FROM {attempt} a WHERE a.consumer = :consumer
                       AND a.origin = f.origin AND a.message_id = f.message_id)
  AND NOT EXISTS (SELECT 1 FROM {consumer} c WHERE c.consumer = :consumer AND c.purge_paused_until > :now);

-- name: runs_of
-- The attempts of some messages.
SELECT a.origin, a.message_id, a.number, a.outcome, a.worker, a.ended_at, a.replay, a.error,
       a.fingerprint, a.duration
FROM json_each(:messages) u
CROSS JOIN {attempt} a ON a.consumer = :consumer AND a.origin = json_extract(u.value, '$[0]')
  AND a.message_id = json_extract(u.value, '$[1]')
ORDER BY a.id;

-- name: purge
-- Deletes messages.
DELETE FROM {inbox} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: purge_attempts
-- Deletes the attempts of messages.
DELETE FROM {attempt} WHERE consumer = :consumer AND (origin, message_id) IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:messages)
);

-- name: purge_paused_until
-- Until when purging is paused, if that time is in the future.
SELECT purge_paused_until FROM {consumer} WHERE consumer = :consumer AND purge_paused_until > :now;

-- name: pause_purge
-- Pauses purging.
INSERT INTO {consumer} AS c (consumer, purged_before, purge_paused_until) VALUES (:consumer, 0, :due)
ON CONFLICT (consumer) DO UPDATE SET
  purge_paused_until = max(coalesce(c.purge_paused_until, 0), excluded.purge_paused_until);

-- name: last_seq
-- The last seq that was drawn, and whether there are any messages.
SELECT seq, EXISTS (SELECT 1 FROM {inbox}) FROM sqlite_sequence WHERE name = trim('{inbox}', '"');

-- name: raise_seq
-- New seqs begin after those of the restored messages.
UPDATE sqlite_sequence SET seq = :last WHERE name = trim('{inbox}', '"') RETURNING seq;

-- name: taken_numbers
-- Whether other messages have the seqs of messages that are to be restored.
SELECT 1 FROM json_each(:messages) u
CROSS JOIN {inbox} i ON i.seq = json_extract(u.value, '$[2]')
WHERE NOT (i.consumer = :consumer AND i.origin = json_extract(u.value, '$[0]')
           AND i.message_id = json_extract(u.value, '$[1]'))
LIMIT 1;

-- name: restore
-- Inserts an archived message, unless it exists. Data that was erased since stays erased.
INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, produced_at, received_at)
SELECT :consumer, :origin, :id, :seq, :type, :version, :key,
       CASE WHEN NOT e.erased THEN :payload END, :hash,
       CASE WHEN NOT e.erased THEN :headers END, :source, :coordinates, :occurred, :produced,
       :received
FROM (SELECT EXISTS (SELECT 1 FROM {audit} a WHERE a.consumer = :consumer AND a.origin = :origin
                     AND a.message_id = :id AND a.action = 'erase') AS erased) e
WHERE true
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING origin, message_id;

-- name: restore_runs
-- Inserts an archived attempt. Data that was erased since stays erased.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker, ended_at)
VALUES (:consumer, :origin, :id, :replay, :number, :outcome,
        CASE WHEN NOT EXISTS (SELECT 1 FROM {audit} a WHERE a.consumer = :consumer
                              AND a.origin = :origin AND a.message_id = :id AND a.action = 'erase')
             THEN :error END,
        :fingerprint, :duration, :worker, :ended_at);

-- name: erase
-- Erases payload and headers of finished messages.
UPDATE {inbox} SET payload = NULL, headers = NULL
WHERE seq IN (
  SELECT f.seq FROM json_each(:messages) u
  CROSS JOIN {finished} f ON f.consumer = :consumer AND f.origin = json_extract(u.value, '$[0]')
    AND f.message_id = json_extract(u.value, '$[1]'))
RETURNING origin, message_id;

-- name: erase_runs
-- Erases the error texts of messages' attempts.
UPDATE {attempt} SET error = NULL WHERE consumer = :consumer AND (origin, message_id) IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:messages)
);

-- name: audit_messages
-- Records an operator's action on messages.
INSERT INTO {audit} (consumer, action, by_whom, why, origin, message_id, acted_at)
SELECT :consumer, :action, :by, :why, json_extract(value, '$[0]'), json_extract(value, '$[1]'), :now FROM json_each(:messages);

-- name: count_quarantined
-- Quarantined deliveries that were never claimed and have the same key or id.
SELECT count(*) FROM {dead_letter} WHERE consumer = :consumer AND seq IS NULL
  AND (key = :key OR message_id IN (SELECT value FROM json_each(:ids)));

-- name: purge_failures
-- Deletes failures of callers' own loops whose messages were never claimed.
DELETE FROM {attempt} WHERE consumer = :consumer AND worker = 'own_loop' AND ended_at < :watermark
  AND NOT EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = {attempt}.consumer
                  AND i.origin = {attempt}.origin AND i.message_id = {attempt}.message_id);

-- name: purge_counters
-- Deletes old counters. They are kept as long as messages.
DELETE FROM {minute_counter} WHERE consumer = :consumer AND minute < :watermark;
