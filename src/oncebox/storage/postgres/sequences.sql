-- name: sequence_states
-- How far the numbers of some keys are, and the lowest of those that wait.
SELECT key, epoch, next, early
FROM {sequence_states}(:consumer::text, :keys::text[], :epochs::text[], :limit::integer);

-- name: store_awaiting
-- Keep messages until their numbers are due; those whose numbers are taken are not kept.
INSERT INTO {awaiting_sequence} (consumer, key, epoch, number, seq, lane, origin, message_id, type, version,
                     payload, headers, source, coordinates, occurred_at, isolated)
SELECT :consumer, key, epoch, number, seq, lane, origin, message_id, type, version,
       payload, headers::json, source, coordinates, occurred_at, isolated
FROM unnest(:key::text[], :epoch::text[], :number::bigint[], :seq::bigint[], :lane::smallint[],
            :origin::text[], :message_id::text[], :type::text[], :version::integer[],
            :payload::bytea[], :headers::text[], :source::text[], :coordinates::text[],
            :occurred_at::timestamptz[], :isolated::boolean[])
  AS u (key, epoch, number, seq, lane, origin, message_id, type, version, payload, headers, source,
        coordinates, occurred_at, isolated)
ON CONFLICT (consumer, key, epoch, number) DO NOTHING
RETURNING key, epoch, number;

-- name: pull_awaiting
-- The time of some messages has come.
SELECT {pull}(:consumer::text, :keys::text[], :epochs::text[], :numbers::bigint[]);

-- name: advance_sequences
-- Which numbers are next, and since when they are missing: anew with every step, or none waits.
INSERT INTO {sequence} AS s (consumer, key, epoch, next, waiting_since)
SELECT :consumer, u.key, u.epoch, u.next, CASE WHEN u.waits THEN clock_timestamp() END
FROM unnest(:keys::text[], :epochs::text[], :nexts::bigint[], :waits::boolean[])
  AS u (key, epoch, next, waits)
ON CONFLICT (consumer, key, epoch) DO UPDATE SET next = excluded.next,
  waiting_since = CASE
    WHEN excluded.waiting_since IS NOT NULL AND s.next IS NOT DISTINCT FROM excluded.next
    THEN coalesce(s.waiting_since, excluded.waiting_since) ELSE excluded.waiting_since END;

-- name: gaps
-- The numbers that are waited for, the longest first.
SELECT key, epoch, next, lowest, early, waiting_since
FROM {gaps}(:consumer::text, :age::double precision, :key::text, :longest::bigint, :limit::integer);

-- name: cut_sequences
-- Keys whose next number waits already: there were too many to be stored at once.
SELECT key, epoch FROM {cut_sequences}(:consumer::text, :limit::integer);

-- name: is_gap
-- Since when a number is missing: under the lock of the key, as long as nothing has changed.
SELECT 1 FROM {sequence} s
WHERE s.consumer = :consumer AND s.key = :key AND s.epoch = :epoch
  AND s.next IS NOT DISTINCT FROM :next::bigint
  AND s.waiting_since <= clock_timestamp() - make_interval(secs => :age);

-- name: try_lock_key
-- The lock of a key, if it is free.
SELECT pg_try_advisory_xact_lock(:lock::bigint);
