-- name: sign_on
-- A worker is there, and will say so again before this long.
INSERT INTO {worker} (consumer, name, incarnation, batch, started_at, heartbeat_at, until)
VALUES (:consumer, :name, :incarnation, :batch, :now, :now, :until)
ON CONFLICT (consumer, incarnation) DO UPDATE SET
  heartbeat_at = excluded.heartbeat_at, until = excluded.until, taken_over_at = NULL;

-- name: sign_off
-- A worker is gone.
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

-- name: suspect_first
-- A worker died, perhaps of one of these: they run alone from now on.
UPDATE {pending} SET isolated = 1 WHERE seq IN (
  SELECT seq FROM {pending} WHERE consumer = :consumer AND available_at IS NULL AND NOT isolated
  ORDER BY seq LIMIT :limit);

-- name: wake
-- What is due is ready; the literal is repeated, or the partial index is not used.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND available_at < 9223372036854775807 AND available_at <= :now;

-- name: take
-- What is ready, in order.
SELECT lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, isolated, crashes, replay, last_error
FROM {pending} WHERE consumer = :consumer AND available_at IS NULL ORDER BY seq LIMIT :limit;

-- name: has_work
-- Whether anything is ready or due.
SELECT EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer AND available_at IS NULL)
    OR EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer
               AND available_at < 9223372036854775807 AND available_at <= :now);

-- name: remove
-- Take these messages out.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: postpone
-- A message is about to run alone: its death is recorded in advance. The time is its token. Or it
-- is only put off.
UPDATE {pending} SET crashes = crashes + :died, last_error = coalesce(:error, last_error),
  available_at = :token
WHERE seq = :seq AND available_at IS NULL AND crashes = :crashes
RETURNING available_at;

-- name: take_isolated
-- Take out the message that runs alone; no row where it was overtaken.
DELETE FROM {pending} WHERE seq = :seq AND available_at = :token RETURNING seq;

-- name: undo_crash
-- It did not die after all. A run that had begun counts as an attempt; one whose token is still its
-- own may be run again soon.
UPDATE {pending} SET crashes = crashes - 1, attempts = attempts + :counted,
  last_error = coalesce(:error, last_error),
  available_at = CASE WHEN available_at = :token THEN :soon ELSE available_at END
WHERE seq = :seq AND crashes > 0;

-- name: isolate
-- These messages run alone from now on: one of them keeps the others from being committed.
UPDATE {pending} SET isolated = 1
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND available_at IS NULL;

-- name: find_vanished
-- Whether a message is neither pending nor dead, and was not finished by somebody else: every run of
-- a stored message leaves a row.
SELECT 1
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = :origin
                  AND a.message_id = :id AND a.replay = :replay AND a.ended_at > :since)
  AND NOT EXISTS (SELECT 1 FROM {replay} r
                  WHERE r.id = :replay AND r.state IN ('cancelling', 'cancelled'));

-- name: count_crashes
-- How many messages run alone or have killed their process lately.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND crashes > 0)
     + (SELECT count(*) FROM {dead_letter} WHERE consumer = :consumer AND crashes > 0
        AND dead_at > :lately);
