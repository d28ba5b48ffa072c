-- name: lock_migrations
-- One migration at a time, whichever process gets here first.
SELECT pg_advisory_xact_lock(:lock);

-- name: create_meta
-- The schema's version, and the oldest version that code must know to work with it.
CREATE TABLE IF NOT EXISTS {meta} (version integer NOT NULL, serves integer NOT NULL);

-- name: has_meta
-- Whether the tables are there, asked in a way that does not abort the transaction.
SELECT to_regclass(:meta) IS NOT NULL;

-- name: read_meta
-- The schema's version and what it serves.
SELECT version, serves FROM {meta};

-- name: clear_meta
-- The version is one row: delete the old one,
DELETE FROM {meta};

-- name: write_meta
-- and write the new one.
INSERT INTO {meta} (version, serves) VALUES (:version, :serves);

-- name: claim
-- One row: a letter per message, the sequence numbers of the new ones, the transaction's id.
SELECT answers, seqs, xid FROM {claim}(
  :consumer::text, :locks::bigint[], :origins::text[], :ids::text[], :types::text[],
  :versions::integer[], :keys::text[], :payloads::bytea[], :hashes::bytea[], :headers::text[],
  :sources::text[], :coordinates::text[], :occurred::timestamptz[], :minted::timestamptz[],
  :timeout::text, :any_snapshot::boolean);

-- name: unclaim
-- Take back what a refused claim() inserted a moment ago in this same transaction.
DELETE FROM {inbox} i USING unnest(:origins::text[], :ids::text[]) AS u (origin, id)
WHERE i.consumer = :consumer AND i.origin = u.origin AND i.message_id = u.id;

-- name: store_pending
-- What failed or has to wait. delay: NULL = ready, infinity = parked, else seconds to the retry.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, alone, last_error, available_at)
SELECT :consumer, lane, seq, origin, message_id, type, version, key, payload, headers::json,
       source, coordinates, occurred_at, attempts, alone, last_error,
       CASE WHEN delay = 'infinity' THEN 'infinity'
            ELSE clock_timestamp() + make_interval(secs => delay) END
FROM unnest(:lane::smallint[], :seq::bigint[], :origin::text[], :message_id::text[], :type::text[],
            :version::integer[], :key::text[], :payload::bytea[], :headers::text[], :source::text[],
            :coordinates::text[], :occurred_at::timestamptz[], :attempts::integer[],
            :alone::boolean[], :last_error::text[], :delay::double precision[])
  AS u (lane, seq, origin, message_id, type, version, key, payload, headers, source, coordinates,
        occurred_at, attempts, alone, last_error, delay);

-- name: store_dead
-- Dead letters and quarantine; a delivery that was quarantined before adds nothing.
INSERT INTO {dead} (consumer, state, reason, seq, origin, message_id, type, version, key, parks,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    error, fingerprint, sighting)
SELECT :consumer, state, reason, seq, origin, message_id, type, version, key, parks,
       payload, content_hash, headers::json, source, coordinates, occurred_at, attempts,
       error, fingerprint, sighting
FROM unnest(:state::text[], :reason::text[], :seq::bigint[], :origin::text[], :message_id::text[],
            :type::text[], :version::integer[], :key::text[], :parks::boolean[], :payload::bytea[],
            :content_hash::bytea[], :headers::text[], :source::text[], :coordinates::text[],
            :occurred_at::timestamptz[], :attempts::integer[], :error::text[],
            :fingerprint::text[], :sighting::bytea[])
  AS u (state, reason, seq, origin, message_id, type, version, key, parks, payload, content_hash,
        headers, source, coordinates, occurred_at, attempts, error, fingerprint, sighting)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run.
INSERT INTO {attempt} (consumer, origin, message_id, number, outcome, error, fingerprint, duration,
                       worker)
SELECT :consumer, origin, message_id, number, outcome, error, fingerprint, duration, :worker
FROM unnest(:origin::text[], :message_id::text[], :number::integer[], :outcome::text[],
            :error::text[], :fingerprint::text[], :duration::double precision[])
  AS u (origin, message_id, number, outcome, error, fingerprint, duration);

-- name: count
-- The counters of this worker and minute. Last in the transaction: the row is locked from here on.
INSERT INTO {minute} AS m (consumer, minute, worker, received, done, duplicate, failed, parked,
                           stored, dead, quarantined, ignored)
VALUES (:consumer, date_trunc('minute', clock_timestamp()), :worker, :received, :done, :duplicate,
        :failed, :parked, :stored, :dead, :quarantined, :ignored)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = m.received + excluded.received, done = m.done + excluded.done,
  duplicate = m.duplicate + excluded.duplicate, failed = m.failed + excluded.failed,
  parked = m.parked + excluded.parked, stored = m.stored + excluded.stored,
  dead = m.dead + excluded.dead, quarantined = m.quarantined + excluded.quarantined,
  ignored = m.ignored + excluded.ignored;

-- name: guard
-- Fails with SQLSTATE OB001 unless this is still the transaction of the claim.
SELECT {guard}(:xid::text);
