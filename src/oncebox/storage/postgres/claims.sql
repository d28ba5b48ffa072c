-- name: claim
-- Claims a batch. One row: a letter per message, the seqs of the new messages, the transaction's id.
SELECT answers, seqs, xid FROM {claim}(
  :consumer::text, :locks::bigint[], :origins::text[], :ids::text[], :types::text[],
  :versions::integer[], :keys::text[], :payloads::bytea[], :hashes::bytea[], :headers::text[],
  :sources::text[], :coordinates::text[], :occurred::timestamptz[], :produced::timestamptz[],
  :timeout::text, :any_snapshot::boolean);

-- name: claim_single
-- Claims one message.
SELECT answer, seq, xid FROM {claim_single}(
  :consumer::text, :lock::bigint, :origin::text, :message_id::text, :type::text, :version::integer,
  :key::text, :payload::bytea, :content_hash::bytea, :headers::text, :source::text,
  :coordinates::text, :occurred_at::timestamptz, :produced_at::timestamptz, :timeout::text,
  :any_snapshot::boolean);

-- name: count_failures
-- How often a message failed in the caller's own loop.
SELECT count(*) FROM {attempt}
WHERE consumer = :consumer AND origin = :origin AND message_id = :message_id
  AND outcome = 'failed';

-- name: transaction_state
-- Whether a transaction was committed, was aborted, or is in progress. NULL if the server does not know
-- the transaction: it crashed, or it is another server after a failover. The xmax of the snapshot
-- would be too low: it leaves out transactions in progress that are newer than the last ended one.
SELECT CASE WHEN :xid::text::xid8 < pg_current_xact_id()
            THEN pg_xact_status(:xid::text::xid8) END;

-- name: committed_claims
-- Which claims of a transaction were committed. No other transaction draws the same seqs.
SELECT i.seq FROM unnest(:origins::text[], :ids::text[], :seqs::bigint[]) AS u (origin, id, seq)
JOIN {inbox} i ON i.consumer = :consumer AND i.origin = u.origin AND i.message_id = u.id
WHERE i.seq = u.seq;

-- name: release_claims
-- Deletes the claims that this transaction has just inserted, because claim() refuses them.
DELETE FROM {inbox} i USING unnest(:origins::text[], :ids::text[]) AS u (origin, id)
WHERE i.consumer = :consumer AND i.origin = u.origin AND i.message_id = u.id;

-- name: store_pending
-- Stores messages that failed or have to wait. delay: NULL = ready, infinity = blocked, else seconds to
-- the retry.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, crashes, replay,
                       last_error, available_at)
SELECT :consumer, lane, seq, origin, message_id, type, version, key, payload, headers::json,
       source, coordinates, occurred_at, attempts, isolated, crashes, replay, last_error,
       CASE WHEN delay = 'infinity' THEN 'infinity'
            ELSE clock_timestamp() + make_interval(secs => delay) END
FROM unnest(:lane::smallint[], :seq::bigint[], :origin::text[], :message_id::text[], :type::text[],
            :version::integer[], :key::text[], :payload::bytea[], :headers::text[], :source::text[],
            :coordinates::text[], :occurred_at::timestamptz[], :attempts::integer[],
            :isolated::boolean[], :crashes::integer[], :replay::bigint[], :last_error::text[],
            :delay::double precision[])
  AS u (lane, seq, origin, message_id, type, version, key, payload, headers, source, coordinates,
        occurred_at, attempts, isolated, crashes, replay, last_error, delay);

-- name: store_dead_letters
-- Stores dead letters and quarantined deliveries. A delivery that is already quarantined adds no row.
INSERT INTO {dead_letter} (consumer, state, reason, seq, origin, message_id, type, version, key, blocks_key,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    crashes, replay, error, fingerprint, sighting, notify_at)
SELECT :consumer, state, reason, seq, origin, message_id, type, version, key, blocks_key,
       payload, content_hash, headers::json, source, coordinates, occurred_at, attempts,
       crashes, replay, error, fingerprint, sighting,
       CASE WHEN :has_on_dead::boolean THEN clock_timestamp() END
FROM unnest(:state::text[], :reason::text[], :seq::bigint[], :origin::text[], :message_id::text[],
            :type::text[], :version::integer[], :key::text[], :blocks_key::boolean[], :payload::bytea[],
            :content_hash::bytea[], :headers::text[], :source::text[], :coordinates::text[],
            :occurred_at::timestamptz[], :attempts::integer[], :crashes::integer[],
            :replay::bigint[], :error::text[], :fingerprint::text[], :sighting::bytea[])
  AS u (state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
        headers, source, coordinates, occurred_at, attempts, crashes, replay, error, fingerprint,
        sighting)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run, and per run of a message that had been stored. The defaults are those of most
-- runs: the first attempt, and done.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker)
SELECT :consumer, origin, message_id, coalesce(replay, 0), coalesce(number, 1),
       coalesce(outcome, 'done'), error, fingerprint, duration, :worker
FROM unnest(:origin::text[], :message_id::text[], :replay::bigint[], :number::integer[],
            :outcome::text[], :error::text[], :fingerprint::text[], :duration::double precision[])
  AS u (origin, message_id, replay, number, outcome, error, fingerprint, duration);

-- name: count
-- Counters of this worker and minute. Last in the transaction, because the row stays locked from here
-- on.
INSERT INTO {minute_counter} AS m (consumer, minute, worker, received, done, duplicate, failed, blocked,
                           stored, dead, quarantined, ignored)
VALUES (:consumer, date_trunc('minute', clock_timestamp()), :worker, :received, :done, :duplicate,
        :failed, :blocked, :stored, :dead, :quarantined, :ignored)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = m.received + excluded.received, done = m.done + excluded.done,
  duplicate = m.duplicate + excluded.duplicate, failed = m.failed + excluded.failed,
  blocked = m.blocked + excluded.blocked, stored = m.stored + excluded.stored,
  dead = m.dead + excluded.dead, quarantined = m.quarantined + excluded.quarantined,
  ignored = m.ignored + excluded.ignored;

-- name: count_and_guard
-- As count, and fails as guard does: the last statement before COMMIT.
INSERT INTO {minute_counter} AS m (consumer, minute, worker, received, done, duplicate, failed, blocked,
                           stored, dead, quarantined, ignored)
SELECT :consumer, date_trunc('minute', clock_timestamp()), :worker, :received, :done, :duplicate,
       :failed, :blocked, :stored, :dead, :quarantined, :ignored
WHERE {guard}(:xid::text)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = m.received + excluded.received, done = m.done + excluded.done,
  duplicate = m.duplicate + excluded.duplicate, failed = m.failed + excluded.failed,
  blocked = m.blocked + excluded.blocked, stored = m.stored + excluded.stored,
  dead = m.dead + excluded.dead, quarantined = m.quarantined + excluded.quarantined,
  ignored = m.ignored + excluded.ignored;

-- name: guard
-- Fails with SQLSTATE OB001 unless this is still the transaction of the claim.
SELECT {guard}(:xid::text);

-- name: receive
-- As claim, and stores the new messages as pending.
SELECT answers, seqs, xid FROM {receive}(
  :consumer::text, :locks::bigint[], :origins::text[], :ids::text[], :types::text[],
  :versions::integer[], :keys::text[], :payloads::bytea[], :hashes::bytea[], :headers::text[],
  :sources::text[], :coordinates::text[], :occurred::timestamptz[], :produced::timestamptz[],
  :timeout::text, :any_snapshot::boolean, :keep_payload::boolean, :lanes::smallint[],
  :isolated::boolean[]);

-- name: notify
-- Wakes workers that listen. Once per batch, because the commit then takes a lock of the whole server.
SELECT pg_notify(:channel, '');

-- name: lock_keys
-- Locks keys. The numbers are sorted, so that two transactions do not deadlock.
SELECT pg_advisory_xact_lock(l) FROM unnest(:locks::bigint[]) AS l;

-- name: block_followers
-- Blocks all messages behind these messages of their keys, including those that had a retry time.
UPDATE {pending} p SET available_at = 'infinity'
FROM unnest(:keys::text[], :seqs::bigint[]) AS h (key, seq)
WHERE p.key = h.key AND p.consumer || '' = :consumer AND p.seq > h.seq
  AND p.available_at IS DISTINCT FROM 'infinity';

-- name: release
-- Makes the blocked messages of these keys ready.
SELECT {release}(:consumer::text, :keys::text[]);
