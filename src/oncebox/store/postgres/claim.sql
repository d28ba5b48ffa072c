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
                       source, coordinates, occurred_at, attempts, alone, deaths, replay,
                       last_error, available_at)
SELECT :consumer, lane, seq, origin, message_id, type, version, key, payload, headers::json,
       source, coordinates, occurred_at, attempts, alone, deaths, replay, last_error,
       CASE WHEN delay = 'infinity' THEN 'infinity'
            ELSE clock_timestamp() + make_interval(secs => delay) END
FROM unnest(:lane::smallint[], :seq::bigint[], :origin::text[], :message_id::text[], :type::text[],
            :version::integer[], :key::text[], :payload::bytea[], :headers::text[], :source::text[],
            :coordinates::text[], :occurred_at::timestamptz[], :attempts::integer[],
            :alone::boolean[], :deaths::integer[], :replay::bigint[], :last_error::text[],
            :delay::double precision[])
  AS u (lane, seq, origin, message_id, type, version, key, payload, headers, source, coordinates,
        occurred_at, attempts, alone, deaths, replay, last_error, delay);

-- name: store_dead
-- Dead letters and quarantine; a delivery that was quarantined before adds nothing.
INSERT INTO {dead} (consumer, state, reason, seq, origin, message_id, type, version, key, parks,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    deaths, replay, error, fingerprint, sighting, tell_at)
SELECT :consumer, state, reason, seq, origin, message_id, type, version, key, parks,
       payload, content_hash, headers::json, source, coordinates, occurred_at, attempts,
       deaths, replay, error, fingerprint, sighting,
       CASE WHEN :tell::boolean THEN clock_timestamp() END
FROM unnest(:state::text[], :reason::text[], :seq::bigint[], :origin::text[], :message_id::text[],
            :type::text[], :version::integer[], :key::text[], :parks::boolean[], :payload::bytea[],
            :content_hash::bytea[], :headers::text[], :source::text[], :coordinates::text[],
            :occurred_at::timestamptz[], :attempts::integer[], :deaths::integer[],
            :replay::bigint[], :error::text[], :fingerprint::text[], :sighting::bytea[])
  AS u (state, reason, seq, origin, message_id, type, version, key, parks, payload, content_hash,
        headers, source, coordinates, occurred_at, attempts, deaths, replay, error, fingerprint,
        sighting)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run, and per run of a message that had been stored; most are the first, and done.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker)
SELECT :consumer, origin, message_id, coalesce(replay, 0), coalesce(number, 1),
       coalesce(outcome, 'done'), error, fingerprint, duration, :worker
FROM unnest(:origin::text[], :message_id::text[], :replay::bigint[], :number::integer[],
            :outcome::text[], :error::text[], :fingerprint::text[], :duration::double precision[])
  AS u (origin, message_id, replay, number, outcome, error, fingerprint, duration);

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

-- name: receive
-- As claim, and what is new is stored as pending.
SELECT answers, seqs, xid FROM {receive}(
  :consumer::text, :locks::bigint[], :origins::text[], :ids::text[], :types::text[],
  :versions::integer[], :keys::text[], :payloads::bytea[], :hashes::bytea[], :headers::text[],
  :sources::text[], :coordinates::text[], :occurred::timestamptz[], :minted::timestamptz[],
  :timeout::text, :any_snapshot::boolean, :keep_payload::boolean, :lanes::smallint[],
  :alone::boolean[]);

-- name: notify
-- A hint to those who listen, once per batch: it takes a lock of the whole server at the commit.
SELECT pg_notify(:channel, '');

-- name: lock_keys
-- The locks of keys, sorted.
SELECT pg_advisory_xact_lock(l) FROM unnest(:locks::bigint[]) AS l;

-- name: park_followers
-- Everything behind these messages of their keys waits, also what had a retry time of its own.
UPDATE {pending} p SET available_at = 'infinity'
FROM unnest(:keys::text[], :seqs::bigint[]) AS h (key, seq)
WHERE p.key = h.key AND p.consumer || '' = :consumer AND p.seq > h.seq
  AND p.available_at IS DISTINCT FROM 'infinity';

-- name: release
-- What waits for these keys may run.
SELECT {release}(:consumer::text, :keys::text[]);
