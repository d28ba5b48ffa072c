-- name: make_lanes
-- Creates the lanes of a consumer.
INSERT INTO {lane} (consumer, lane) SELECT :consumer, lane FROM generate_series(0, :lanes - 1) lane
ON CONFLICT DO NOTHING;

-- name: sign_on
-- Records a worker, and until when it sends its next heartbeat.
INSERT INTO {worker} (consumer, name, incarnation, batch, until)
VALUES (:consumer, :name, :incarnation, :batch,
        clock_timestamp() + make_interval(secs => :heartbeat_timeout))
ON CONFLICT (consumer, incarnation) DO UPDATE SET
  heartbeat_at = clock_timestamp(), until = excluded.until, taken_over_at = NULL;

-- name: sign_off
-- Deletes a worker that stops.
DELETE FROM {worker} WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: other_workers
-- The workers that have not signed off, and whether their heartbeat is overdue.
SELECT name, incarnation, batch, until < clock_timestamp() FROM {worker}
WHERE consumer = :consumer AND incarnation <> :incarnation;

-- name: take_over_workers
-- Note that a live worker continues what overdue workers left: any worker takes any lane.
UPDATE {worker} SET taken_over_at = clock_timestamp()
WHERE consumer = :consumer AND until < clock_timestamp() AND taken_over_at IS NULL
  AND incarnation <> :incarnation;

-- name: delete_workers
-- Delete the rows of workers that crashed more than an hour ago.
DELETE FROM {worker} WHERE consumer = :consumer AND until < clock_timestamp() - interval '1 hour';

-- name: take
-- The ready messages of lanes, which are locked.
SELECT state, xid, lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, isolated, crashes, replay, last_error
FROM {take}(:consumer::text, :limit::integer, :lanes::integer, :timeout::text, :wake::boolean,
            :floors::bigint[], :due::timestamptz, :server::timestamptz);

-- name: raise_floors
-- Where to begin in each lane from now on. Must be the first statement of its transaction.
SELECT p_floors, p_due, p_server, p_drawn, p_noted_at, p_xid
FROM {raise_floors}(:consumer::text, :incarnation::text, :floors::bigint[], :due::timestamptz,
                    :server::timestamptz, :drawn::bigint, :noted_at::timestamptz, :xid::text);

-- name: clear_crash_evidence
-- A worker rolled back without a crash: it locks its lanes once more, which clears the evidence.
-- Evidence that other workers left is not cleared.
SELECT lane FROM {lane}
WHERE consumer = :consumer AND lane = ANY (:lanes::smallint[])
  AND xmax::text = mod(:xid::numeric, 4294967296)::text
FOR UPDATE;

-- name: limit_transaction
-- The server may not have noticed yet that the old connection is closed: wait for it, but only 2 s.
SELECT set_config('lock_timeout', '2s', true);

-- name: find_vanished
-- Which of these messages are neither pending nor dead, and were not finished by another worker: every
-- run of a stored message leaves a row, until a purge deletes the message with its rows.
SELECT m.seq
FROM unnest(:seqs::bigint[], :origins::text[], :ids::text[], :replays::bigint[])
  AS m (seq, origin, id, replay)
WHERE EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = :consumer AND i.origin = m.origin
              AND i.message_id = m.id)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.origin = m.origin
                  AND d.message_id = m.id AND d.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.id AND a.replay = m.replay
                  AND a.ended_at > clock_timestamp() - make_interval(secs => :within))
  AND NOT EXISTS (SELECT 1 FROM {replay} r
                  WHERE r.id = m.replay AND r.state IN ('cancelling', 'cancelled'));

-- name: remove
-- Deletes these messages from the queue, all or none.
SELECT {remove}(:seqs::bigint[]);

-- name: postpone
-- Postpones a message. If it is about to run in isolation, its crash is recorded in advance, and
-- available_at is its token. Finds no row if an operator made an earlier message of its key pending
-- meanwhile.
UPDATE {pending} SET crashes = crashes + :crashed, last_error = coalesce(:error, last_error),
  available_at = clock_timestamp() + make_interval(secs => :delay)
WHERE seq = :seq AND available_at IS NULL AND crashes = :crashes
  AND NOT EXISTS (SELECT 1 FROM {pending} e
                  WHERE e.key = {pending}.key AND e.consumer || '' = {pending}.consumer
                    AND e.seq < {pending}.seq)
RETURNING (extract(epoch FROM available_at) * 1000000)::bigint;

-- name: take_isolated
-- Deletes the message that is about to run in isolation. NULL if another worker was faster.
SELECT {take_isolated}(:seq::bigint, :token::bigint, :timeout::text);

-- name: undo_crash
-- Undoes a crash recorded in advance. A run that had begun counts as an attempt. If no other worker
-- changed the token, the message may run again after the delay.
UPDATE {pending} SET crashes = greatest(crashes - 1, 0), attempts = attempts + :counted::integer,
  last_error = coalesce(:error, last_error),
  available_at = CASE
    WHEN isfinite(available_at) AND (extract(epoch FROM available_at) * 1000000)::bigint = :token
    THEN clock_timestamp() + make_interval(secs => :delay) ELSE available_at END
WHERE seq = (SELECT p.seq FROM {pending} p WHERE p.seq = :seq AND p.crashes > 0
             FOR UPDATE SKIP LOCKED);

-- name: isolate
-- Isolates these messages: one of them prevents the others from being committed.
UPDATE {pending} SET isolated = true WHERE seq IN (
  SELECT seq FROM {pending} WHERE seq = ANY (:seqs::bigint[]) AND available_at IS NULL
  FOR UPDATE SKIP LOCKED);

-- name: count_crashes
-- How many pending messages crashed a process, and how many dead letters of the last 10 minutes did.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND crashes > 0)
     + (SELECT count(*) FROM {dead_letter} WHERE consumer = :consumer AND crashes > 0
        AND dead_at > clock_timestamp() - interval '10 minutes');

-- name: end_overdue_transactions
-- Before PostgreSQL 17 nothing else ends the transaction of a suspended process in pipeline mode.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()
  AND CASE WHEN application_name ~ '^oncebox until [0-9]{1,15}$'
           THEN substr(application_name, 15)::bigint < extract(epoch FROM clock_timestamp())
           ELSE false END;
