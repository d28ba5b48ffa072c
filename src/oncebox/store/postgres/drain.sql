-- name: make_lanes
-- The lanes of a consumer.
INSERT INTO {lane} (consumer, lane) SELECT :consumer, lane FROM generate_series(0, :lanes - 1) lane
ON CONFLICT DO NOTHING;

-- name: sign_on
-- A worker is there, and will say so again before this long.
INSERT INTO {worker} (consumer, name, incarnation, batch, until)
VALUES (:consumer, :name, :incarnation, :batch,
        clock_timestamp() + make_interval(secs => :patience))
ON CONFLICT (consumer, incarnation) DO UPDATE SET
  beat_at = clock_timestamp(), until = excluded.until;

-- name: sign_off
-- A worker is gone.
DELETE FROM {worker} WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: others
-- The workers that have not signed off, and whether they should have been heard of since.
SELECT name, incarnation, batch, until < clock_timestamp() FROM {worker}
WHERE consumer = :consumer AND incarnation <> :incarnation;

-- name: forget_workers
-- Rows of workers that did not stop cleanly, long after they should have been heard of.
DELETE FROM {worker} WHERE consumer = :consumer AND until < clock_timestamp() - interval '1 hour';

-- name: take
-- What is ready, with the lanes that hold it locked.
SELECT state, xid, lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, alone, deaths, replay, last_error
FROM {take}(:consumer::text, :limit::integer, :lanes::integer, :timeout::text, :wake::boolean);

-- name: forgive
-- A worker rolled back and is alive: locking its lanes once more clears the evidence of a death. What
-- somebody else left there is not touched.
SELECT lane FROM {lane}
WHERE consumer = :consumer AND lane = ANY (:lanes::smallint[])
  AND xmax::text = mod(:xid::numeric, 4294967296)::text
FOR UPDATE;

-- name: be_brief
-- The server may not have noticed yet that our old connection is gone: wait, but not for long.
SELECT set_config('lock_timeout', '2s', true);

-- name: vanished
-- Which of these messages are neither pending nor dead, and were not finished by somebody else: every
-- run of a stored message leaves a row.
SELECT m.seq
FROM unnest(:seqs::bigint[], :origins::text[], :ids::text[], :replays::bigint[])
  AS m (seq, origin, id, replay)
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.consumer = :consumer AND d.origin = m.origin
                  AND d.message_id = m.id AND d.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.id AND a.replay = m.replay
                  AND a.ended_at > clock_timestamp() - make_interval(secs => :within))
  AND NOT EXISTS (SELECT 1 FROM {replay} r
                  WHERE r.id = m.replay AND r.state IN ('cancelling', 'cancelled'));

-- name: remove
-- Take these messages out, all of them or none.
SELECT {remove}(:seqs::bigint[]);

-- name: put_off
-- A message is about to run alone: its death is recorded in advance. The time is its token. Or it
-- is only put off. Not if an operator put an earlier one of its key back meanwhile.
UPDATE {pending} SET deaths = deaths + :died, last_error = coalesce(:error, last_error),
  available_at = clock_timestamp() + make_interval(secs => :delay)
WHERE seq = :seq AND available_at IS NULL AND deaths = :deaths
  AND NOT EXISTS (SELECT 1 FROM {pending} e
                  WHERE e.key = {pending}.key AND e.consumer || '' = {pending}.consumer
                    AND e.seq < {pending}.seq)
RETURNING (extract(epoch FROM available_at) * 1000000)::bigint;

-- name: take_alone
-- Take out the message that runs alone; NULL where it was overtaken.
SELECT {take_alone}(:seq::bigint, :token::bigint, :timeout::text);

-- name: absolve
-- It did not die after all. A run that had begun counts as an attempt; one whose token is still its
-- own may be run again soon.
UPDATE {pending} SET deaths = greatest(deaths - 1, 0), attempts = attempts + :counted::integer,
  last_error = coalesce(:error, last_error),
  available_at = CASE
    WHEN isfinite(available_at) AND (extract(epoch FROM available_at) * 1000000)::bigint = :token
    THEN clock_timestamp() + make_interval(secs => :delay) ELSE available_at END
WHERE seq = (SELECT p.seq FROM {pending} p WHERE p.seq = :seq AND p.deaths > 0
             FOR UPDATE SKIP LOCKED);

-- name: suspect
-- These messages run alone from now on: one of them keeps the others from being committed.
UPDATE {pending} SET alone = true WHERE seq IN (
  SELECT seq FROM {pending} WHERE seq = ANY (:seqs::bigint[]) AND available_at IS NULL
  FOR UPDATE SKIP LOCKED);

-- name: count_deaths
-- How many messages run alone or have killed their process lately.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND deaths > 0)
     + (SELECT count(*) FROM {dead} WHERE consumer = :consumer AND deaths > 0
        AND died_at > clock_timestamp() - interval '10 minutes');

-- name: end_overdue
-- Before PostgreSQL 17 nothing else ends a transaction that was left behind in pipeline mode.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()
  AND CASE WHEN application_name ~ '^oncebox until [0-9]{1,15}$'
           THEN substr(application_name, 15)::bigint < extract(epoch FROM clock_timestamp())
           ELSE false END;
