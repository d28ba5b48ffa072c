-- name: last_arrival
-- The minute of the last new message. Claims in callers' transactions write no counter.
SELECT greatest(
  (SELECT minute FROM {minute_counter} WHERE consumer = :consumer AND received > duplicate
   ORDER BY minute DESC LIMIT 1),
  (SELECT date_trunc('minute', received_at) FROM {inbox} WHERE consumer = :consumer AND by_caller
   ORDER BY received_at DESC LIMIT 1));

-- name: oldest_arrival
-- When the oldest of the messages that arrived since a time was produced.
SELECT min(produced_at) FROM {inbox} WHERE consumer = :consumer AND received_at >= :since;

-- name: partition_progress
-- The progress of every partition of every source.
SELECT source || ' ' || partition, lag, owner IS NOT NULL AND until >= clock_timestamp(), seen_at, moved_at
FROM {position} WHERE consumer = :consumer ORDER BY source, partition;

-- name: set_watermark
-- Moves the watermark, only forward.
INSERT INTO {consumer} AS c (consumer, purged_before) VALUES (:consumer, :watermark)
ON CONFLICT (consumer) DO UPDATE SET purged_before = greatest(c.purged_before, excluded.purged_before)
RETURNING purged_before;

-- name: take_purge_turn
-- Returns a row for the first caller after a time: this caller runs the purge.
INSERT INTO {consumer} AS c (consumer, purged_before, last_purge_at)
VALUES (:consumer, '-infinity', clock_timestamp())
ON CONFLICT (consumer) DO UPDATE SET last_purge_at = clock_timestamp()
WHERE c.last_purge_at IS NULL OR c.last_purge_at < clock_timestamp() - make_interval(secs => :every)
RETURNING 1;

-- name: count_old
-- How many messages are older than a watermark, finished or not.
SELECT count(*) FROM (
  SELECT FROM {inbox} WHERE consumer = :consumer AND received_at < :watermark LIMIT :limit
) i;

-- name: old_windows
-- Where old messages are: groups of 32 pages. One statement finds all, because the BRIN index has no
-- order.
SELECT DISTINCT (ctid::text::point)[0]::bigint / 32 AS w FROM {inbox}
WHERE consumer = :consumer AND received_at < :watermark ORDER BY w;

-- name: may_purge
-- False if a replay is about to begin. If true, none begins until this transaction ends.
SELECT pg_try_advisory_xact_lock_shared(:lock::bigint);

-- name: purge
-- Deletes old finished messages in a range of pages, and their attempts. Skips rows that another
-- transaction has locked: a later purge deletes them.
WITH gone AS (
  DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT f.place FROM {finished} f
    WHERE f.place >= ('(' || :window::bigint * 32 || ',0)')::tid
      AND f.place < ('(' || (:window::bigint + 1) * 32 || ',0)')::tid
      AND f.consumer = :consumer AND f.received_at < :watermark
      AND (f.produced_at IS NULL OR f.produced_at < :watermark)
      AND NOT EXISTS (SELECT FROM {consumer} c
                      WHERE c.consumer = :consumer AND c.purge_paused_until > clock_timestamp())
    FOR UPDATE OF f SKIP LOCKED
  ))
  RETURNING origin, message_id
), trail AS (
  DELETE FROM {attempt} WHERE ctid = ANY (ARRAY(
    SELECT a.ctid FROM gone g CROSS JOIN LATERAL (
      SELECT a.ctid FROM {attempt} a
      WHERE a.consumer = :consumer AND a.origin = g.origin AND a.message_id = g.message_id OFFSET 0
    ) a
  ))
)
SELECT count(*) FROM gone;

-- name: old_size
-- How many old messages are in a range of pages, and the bytes of their payloads. This does not read
-- the payloads.
SELECT count(*), coalesce(sum(octet_length(i.payload)), 0)::bigint FROM {inbox} i
WHERE i.ctid >= ('(' || :window::bigint * 32 || ',0)')::tid
  AND i.ctid < ('(' || (:window::bigint + 1) * 32 || ',0)')::tid
  AND i.consumer = :consumer AND i.received_at < :watermark;

-- name: old_messages
-- Old finished messages in a range of pages.
SELECT f.seq, f.origin, f.message_id, f.type, f.version, f.received_at, f.key, f.payload,
       f.content_hash, f.headers::text, f.source, f.coordinates, f.occurred_at, f.produced_at
FROM {finished} f
WHERE f.place >= ('(' || :window::bigint * 32 || ',0)')::tid
  AND f.place < ('(' || (:window::bigint + 1) * 32 || ',0)')::tid
  AND f.consumer = :consumer AND f.received_at < :watermark
  AND (f.produced_at IS NULL OR f.produced_at < :watermark) AND f.seq > :after
ORDER BY f.seq LIMIT :limit;

-- name: runs_of
-- The attempts of some messages.
SELECT a.origin, a.message_id, a.number, a.outcome, a.worker, a.ended_at, a.replay, a.error,
       a.fingerprint, a.duration
FROM unnest(:origins::text[], :ids::text[]) AS u (origin, id)
CROSS JOIN LATERAL (
  SELECT * FROM {attempt} a
  WHERE a.consumer = :consumer AND a.origin = u.origin AND a.message_id = u.id OFFSET 0
) a
ORDER BY a.id;

-- name: purge_archived
-- Deletes archived messages and their attempts, unless they have changed since. LATERAL makes the
-- planner look up messages one by one: on tables that were never analyzed it would read all rows for
-- each.
WITH wanted AS MATERIALIZED (
  SELECT * FROM unnest(:origins::text[], :ids::text[], :runs::bigint[], :kept::boolean[])
    AS u (origin, id, runs, kept)
), gone AS (
  DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT n.place FROM wanted w CROSS JOIN LATERAL (
      SELECT f.place FROM {finished} f
      WHERE f.consumer = :consumer AND f.origin = w.origin AND f.message_id = w.id
        AND (f.payload IS NOT NULL) = w.kept
        AND w.runs = (SELECT count(*) FROM {attempt} a WHERE a.consumer = :consumer
                      AND a.origin = w.origin AND a.message_id = w.id)
        AND NOT EXISTS (SELECT FROM {consumer} c
                        WHERE c.consumer = :consumer AND c.purge_paused_until > clock_timestamp())
      FOR UPDATE OF f SKIP LOCKED
    ) n
  ))
  RETURNING origin, message_id
), trail AS (
  DELETE FROM {attempt} WHERE ctid = ANY (ARRAY(
    SELECT a.ctid FROM gone g CROSS JOIN LATERAL (
      SELECT a.ctid FROM {attempt} a
      WHERE a.consumer = :consumer AND a.origin = g.origin AND a.message_id = g.message_id OFFSET 0
    ) a
  ))
)
SELECT count(*) FROM gone;

-- name: purge_paused_until
-- Until when purging is paused, if that time is in the future.
SELECT purge_paused_until FROM {consumer} WHERE consumer = :consumer AND purge_paused_until > clock_timestamp();

-- name: pause_purge
-- Pauses purging.
INSERT INTO {consumer} AS c (consumer, purged_before, purge_paused_until)
VALUES (:consumer, '-infinity', clock_timestamp() + make_interval(secs => :rest))
ON CONFLICT (consumer) DO UPDATE SET purge_paused_until = greatest(c.purge_paused_until, excluded.purge_paused_until);

-- name: last_seq
-- The last seq that was drawn, and whether there are any messages.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END, EXISTS (SELECT FROM {inbox}) FROM {seq};

-- name: raise_seq
-- New seqs begin after those of the restored messages.
SELECT setval('{seq}', :last::bigint);

-- name: restore
-- Inserts archived messages that do not exist. Data that was erased since stays erased.
INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, produced_at, received_at)
SELECT :consumer, u.origin, u.id, u.seq, u.type, u.version, u.key,
       CASE WHEN NOT e.erased THEN u.payload END, u.content_hash,
       CASE WHEN NOT e.erased THEN u.headers::json END, u.source, u.coordinates, u.occurred_at,
       u.produced_at, u.received_at
FROM unnest(:origins::text[], :ids::text[], :seqs::bigint[], :types::text[], :versions::integer[],
            :keys::text[], :payloads::bytea[], :hashes::bytea[], :headers::text[],
            :sources::text[], :coordinates::text[], :occurred::timestamptz[],
            :produced::timestamptz[], :received::timestamptz[])
  AS u (origin, id, seq, type, version, key, payload, content_hash, headers, source, coordinates,
        occurred_at, produced_at, received_at)
CROSS JOIN LATERAL (
  SELECT EXISTS (SELECT FROM {audit} a WHERE a.consumer = :consumer AND a.origin = u.origin
                 AND a.message_id = u.id AND a.action = 'erase') AS erased
) e
ORDER BY u.origin COLLATE "C", u.id COLLATE "C"
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING origin, message_id;

-- name: restore_runs
-- Inserts archived attempts. Data that was erased since stays erased.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker, ended_at)
SELECT :consumer, u.origin, u.id, u.replay, u.number, u.outcome,
       CASE WHEN NOT EXISTS (SELECT FROM {audit} a WHERE a.consumer = :consumer
                             AND a.origin = u.origin AND a.message_id = u.id AND a.action = 'erase')
            THEN u.error END,
       u.fingerprint, u.duration, u.worker, u.ended_at
FROM unnest(
  :origins::text[], :ids::text[], :replays::bigint[], :numbers::integer[], :outcomes::text[],
  :errors::text[], :fingerprints::text[], :durations::double precision[], :workers::text[],
  :ended::timestamptz[])
  AS u (origin, id, replay, number, outcome, error, fingerprint, duration, worker, ended_at);

-- name: erase
-- Erases payload and headers of finished messages.
UPDATE {inbox} i SET payload = NULL, headers = NULL
FROM unnest(:origins::text[], :ids::text[]) AS u (origin, id)
WHERE i.consumer = :consumer AND i.origin = u.origin AND i.message_id = u.id
  AND EXISTS (SELECT FROM {finished} f WHERE f.consumer = :consumer AND f.origin = u.origin
              AND f.message_id = u.id)
RETURNING i.origin, i.message_id;

-- name: erase_runs
-- Erases the error texts of messages' attempts.
UPDATE {attempt} a SET error = NULL
FROM unnest(:origins::text[], :ids::text[]) AS u (origin, id)
WHERE a.consumer = :consumer AND a.origin = u.origin AND a.message_id = u.id;

-- name: audit_messages
-- Records an operator's action on messages.
INSERT INTO {audit} (consumer, action, by_whom, why, origin, message_id)
SELECT :consumer, :action, :by, :why, u.origin, u.id
FROM unnest(:origins::text[], :ids::text[]) AS u (origin, id);

-- name: count_quarantined
-- Quarantined deliveries that were never claimed and have the same key or id.
SELECT count(*) FROM {dead_letter} d WHERE d.consumer = :consumer AND d.seq IS NULL
  AND (d.key = :key OR d.message_id = ANY (:ids::text[]));

-- name: purge_failures
-- Deletes failures of callers' own loops whose messages were never claimed.
DELETE FROM {attempt} a WHERE a.consumer = :consumer AND a.worker = 'own_loop' AND a.ended_at < :watermark
  AND NOT EXISTS (SELECT FROM {inbox} i WHERE i.consumer = a.consumer AND i.origin = a.origin
                  AND i.message_id = a.message_id);

-- name: purge_counters
-- Deletes old counters. They are kept as long as messages.
DELETE FROM {minute_counter} WHERE consumer = :consumer AND minute < :watermark;
