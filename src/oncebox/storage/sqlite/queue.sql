-- name: sign_on
-- Records a worker, and until when it sends its next heartbeat.
INSERT INTO {worker} (consumer, name, incarnation, batch, started_at, heartbeat_at, until)
VALUES (:consumer, :name, :incarnation, :batch, :now, :now, :until)
ON CONFLICT (consumer, incarnation) DO UPDATE SET
  heartbeat_at = excluded.heartbeat_at, until = excluded.until, taken_over_at = NULL;

-- name: sign_off
-- Deletes a worker that stops.
DELETE FROM {worker} WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: other_workers
-- The workers that have not signed off, and whether their heartbeat is overdue.
SELECT name, incarnation, batch, until < :now FROM {worker}
WHERE consumer = :consumer AND incarnation <> :incarnation AND taken_over_at IS NULL;

-- name: take_over_worker
-- Note that a live worker continues what a crashed worker left.
UPDATE {worker} SET taken_over_at = :now
WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: take_over_idle_workers
-- Note that overdue workers left nothing. While anything is ready, one of them may have crashed
-- because of it: take() isolates that first.
UPDATE {worker} SET taken_over_at = :now
WHERE consumer = :consumer AND until < :now AND taken_over_at IS NULL
  AND incarnation <> :incarnation
  AND NOT EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer AND available_at IS NULL);

-- name: delete_workers
-- Delete the rows of workers that crashed more than an hour ago.
DELETE FROM {worker} WHERE consumer = :consumer AND taken_over_at < :long_ago;

-- name: isolate_first
-- Isolates the first messages: a worker crashed, and one of them may be the cause.
UPDATE {pending} SET isolated = 1 WHERE seq IN (
  SELECT seq FROM {pending} WHERE consumer = :consumer AND available_at IS NULL AND NOT isolated
  ORDER BY seq LIMIT :limit);

-- name: wake
-- Makes due retries ready. The literal is repeated because the partial index is not used without it.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND available_at < 9223372036854775807 AND available_at <= :now;

-- name: take
-- The ready messages, in order.
SELECT lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, isolated, crashes, replay, last_error
FROM {pending} WHERE consumer = :consumer AND available_at IS NULL ORDER BY seq LIMIT :limit;

-- name: has_work
-- Whether a message is ready or a retry is due.
SELECT EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer AND available_at IS NULL)
    OR EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer
               AND available_at < 9223372036854775807 AND available_at <= :now);

-- name: remove
-- Deletes these messages from the queue.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: postpone
-- Postpones a message. If it is about to run in isolation, its crash is recorded in advance, and
-- available_at is its token.
UPDATE {pending} SET crashes = crashes + :crashed, last_error = coalesce(:error, last_error),
  available_at = :token
WHERE seq = :seq AND available_at IS NULL AND crashes = :crashes
RETURNING available_at;

-- name: take_isolated
-- Deletes the message that is about to run in isolation. No row if another worker was faster.
DELETE FROM {pending} WHERE seq = :seq AND available_at = :token RETURNING seq;

-- name: undo_crash
-- Undoes a crash recorded in advance. A run that had begun counts as an attempt. If no other worker
-- changed the token, the message may run again after the delay.
UPDATE {pending} SET crashes = crashes - 1, attempts = attempts + :counted,
  last_error = coalesce(:error, last_error),
  available_at = CASE WHEN available_at = :token THEN :soon ELSE available_at END
WHERE seq = :seq AND crashes > 0;

-- name: isolate
-- Isolates these messages: one of them prevents the others from being committed.
UPDATE {pending} SET isolated = 1
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND available_at IS NULL;

-- name: find_vanished
-- Whether a message is neither pending nor dead, and was not finished by another worker: every run of a
-- stored message leaves a row, until a purge deletes the message with its rows.
SELECT 1
WHERE EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = :origin
              AND i.message_id = :id)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = :origin
                  AND a.message_id = :id AND a.replay = :replay AND a.ended_at > :since)
  AND NOT EXISTS (SELECT 1 FROM {replay} r
                  WHERE r.id = :replay AND r.state IN ('cancelling', 'cancelled'));

-- name: count_crashes
-- How many pending messages crashed a process, and how many dead letters of the last 10 minutes did.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND crashes > 0)
     + (SELECT count(*) FROM {dead_letter} WHERE consumer = :consumer AND crashes > 0
        AND dead_at > :since);
