-- name: sign_on
-- A worker is there, and will say so again before this long.
INSERT INTO {worker} (consumer, name, incarnation, batch, started_at, beat_at, until)
VALUES (:consumer, :name, :incarnation, :batch, :now, :now, :until)
ON CONFLICT (consumer, incarnation) DO UPDATE SET beat_at = excluded.beat_at, until = excluded.until;

-- name: sign_off
-- A worker is gone.
DELETE FROM {worker} WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: others
-- The workers that have not signed off, and whether they should have been heard of since.
SELECT name, incarnation, batch, until < :now FROM {worker}
WHERE consumer = :consumer AND incarnation <> :incarnation;

-- name: suspect_first
-- A worker died, perhaps of one of these: they run alone from now on.
UPDATE {pending} SET alone = 1 WHERE seq IN (
  SELECT seq FROM {pending} WHERE consumer = :consumer AND available_at IS NULL AND NOT alone
  ORDER BY seq LIMIT :limit);

-- name: wake
-- What is due is ready; the literal is repeated, or the partial index is not used.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND available_at < 9223372036854775807 AND available_at <= :now;

-- name: take
-- What is ready, in order.
SELECT lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, alone, deaths, replay, last_error
FROM {pending} WHERE consumer = :consumer AND available_at IS NULL ORDER BY seq LIMIT :limit;

-- name: is_work
-- Whether anything is ready or due.
SELECT EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer AND available_at IS NULL)
    OR EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer
               AND available_at < 9223372036854775807 AND available_at <= :now);

-- name: remove
-- Take these messages out.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: put_off
-- A message is about to run alone: its death is recorded in advance. The time is its token. Or it
-- is only put off.
UPDATE {pending} SET deaths = deaths + :died, last_error = coalesce(:error, last_error),
  available_at = :token
WHERE seq = :seq AND available_at IS NULL AND deaths = :deaths
RETURNING available_at;

-- name: take_alone
-- Take out the message that runs alone; no row where it was overtaken.
DELETE FROM {pending} WHERE seq = :seq AND available_at = :token RETURNING seq;

-- name: absolve
-- It did not die after all. A run that had begun counts as an attempt; one whose token is still its
-- own may be run again soon.
UPDATE {pending} SET deaths = deaths - 1, attempts = attempts + :counted,
  last_error = coalesce(:error, last_error),
  available_at = CASE WHEN available_at = :token THEN :soon ELSE available_at END
WHERE seq = :seq AND deaths > 0;

-- name: suspect
-- These messages run alone from now on: one of them keeps the others from being committed.
UPDATE {pending} SET alone = 1
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND available_at IS NULL;

-- name: vanished
-- Whether a message is neither pending nor dead, and was not finished by somebody else: every run of
-- a stored message leaves a row.
SELECT 1
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.consumer = :consumer AND d.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = :origin
                  AND a.message_id = :id AND a.replay = :replay AND a.ended_at > :since)
  AND NOT EXISTS (SELECT 1 FROM {replay} r
                  WHERE r.id = :replay AND r.state IN ('cancelling', 'cancelled'));

-- name: count_deaths
-- How many messages run alone or have killed their process lately.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND deaths > 0)
     + (SELECT count(*) FROM {dead} WHERE consumer = :consumer AND deaths > 0
        AND died_at > :lately);
