-- name: sequence_states
-- The next sequence number of some keys, and the lowest numbers that wait.
SELECT key, epoch, next, early
FROM {sequence_states}(:consumer::text, :keys::text[], :epochs::text[], :limit::integer);

-- name: store_awaiting
-- Stores messages until their sequence numbers are due, unless other messages have the same numbers.
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
-- Moves messages whose turn has come to the end of their keys.
SELECT {pull}(:consumer::text, :keys::text[], :epochs::text[], :numbers::bigint[]);

-- name: advance_sequences
-- Records the next number of each sequence, and since when it is missing. The time starts again with
-- every step, and is NULL if no message waits.
INSERT INTO {sequence} AS s (consumer, key, epoch, next, waiting_since)
SELECT :consumer, u.key, u.epoch, u.next, CASE WHEN u.waits THEN clock_timestamp() END
FROM unnest(:keys::text[], :epochs::text[], :nexts::bigint[], :waits::boolean[])
  AS u (key, epoch, next, waits)
ON CONFLICT (consumer, key, epoch) DO UPDATE SET next = excluded.next,
  waiting_since = CASE
    WHEN excluded.waiting_since IS NOT NULL AND s.next IS NOT DISTINCT FROM excluded.next
    THEN coalesce(s.waiting_since, excluded.waiting_since) ELSE excluded.waiting_since END;

-- name: gaps
-- Missing sequence numbers, the longest wait first.
SELECT key, epoch, next, lowest, early, waiting_since
FROM {gaps}(:consumer::text, :age::double precision, :key::text, :longest::bigint, :limit::integer);

-- name: cut_sequences
-- Sequences whose next number has arrived, but too many messages waited to store all at once.
SELECT key, epoch FROM {cut_sequences}(:consumer::text, :limit::integer);

-- name: is_gap
-- Whether a number is still missing since a time. Called under the lock of the key.
SELECT 1 FROM {sequence} s
WHERE s.consumer = :consumer AND s.key = :key AND s.epoch = :epoch
  AND s.next IS NOT DISTINCT FROM :next::bigint
  AND s.waiting_since <= clock_timestamp() - make_interval(secs => :age);

-- name: try_lock_key
-- Locks a key, if no other transaction has locked it.
SELECT pg_try_advisory_xact_lock(:lock::bigint);
