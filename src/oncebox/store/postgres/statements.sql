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
-- One row per failed run, and per run of a message that had been stored.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker)
SELECT :consumer, origin, message_id, replay, number, outcome, error, fingerprint, duration, :worker
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
FROM {take}(:consumer::text, :limit::integer, :lanes::integer, :timeout::text);

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
FROM unnest(:seqs::bigint[], :origins::text[], :ids::text[], :replays::bigint[], :numbers::integer[])
  AS m (seq, origin, id, replay, number)
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.consumer = :consumer AND d.origin = m.origin
                  AND d.message_id = m.id AND d.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = m.origin
                  AND a.message_id = m.id AND a.replay = m.replay AND a.number > m.number);

-- name: remove
-- Take these messages out, all of them or none.
SELECT {remove}(:seqs::bigint[]);

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
-- What waits for these keys may run, up to the next retrying head or parking dead letter.
UPDATE {pending} p SET available_at = NULL
WHERE p.key = ANY (:keys::text[]) AND p.consumer || '' = :consumer AND p.available_at = 'infinity'
  AND NOT EXISTS (SELECT 1 FROM {pending} h
                  WHERE h.key = p.key AND h.consumer || '' = p.consumer AND h.seq < p.seq
                    AND h.available_at < 'infinity')
  AND NOT EXISTS (SELECT 1 FROM {dead} d
                  WHERE d.key = p.key AND d.consumer || '' = p.consumer AND d.parks
                    AND d.seq < p.seq);

-- name: put_off
-- A message is about to run alone: its death is recorded in advance. The time is its token. Or it
-- is only put off.
UPDATE {pending} SET deaths = deaths + :died, last_error = coalesce(:error, last_error),
  available_at = clock_timestamp() + make_interval(secs => :delay)
WHERE seq = :seq AND available_at IS NULL AND deaths = :deaths
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
WHERE seq = :seq AND deaths > 0;

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

-- name: newest_dead
-- The number of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead} WHERE consumer = :consumer;

-- name: find_dead
-- Dead letters and quarantine that match, in the order of their numbers.
SELECT id, state, reason, seq, origin, message_id, type, version, key, parks, payload, content_hash,
       headers::text, source, coordinates, occurred_at, attempts, deaths, replay, error,
       fingerprint, died_at
FROM {dead}
WHERE consumer = :consumer AND id > :after AND id <= :up_to
  AND (:ids::bigint[] IS NULL OR id = ANY (:ids))
  AND (:state::text IS NULL OR state = :state)
  AND (:reason::text IS NULL OR reason = :reason)
  AND (:type::text IS NULL OR type = :type)
  AND (:key::text IS NULL OR key = :key)
  AND (:origin::text IS NULL OR origin = :origin)
  AND (:message_id::text IS NULL OR message_id = :message_id)
  AND (:fingerprint::text IS NULL OR fingerprint = :fingerprint)
ORDER BY id LIMIT :limit;

-- name: isolation
-- At which level this transaction runs.
SELECT current_setting('transaction_isolation');

-- name: busy_keys
-- The keys one of whose messages runs alone at this moment; the others' retrying heads are locked.
WITH free AS (
  SELECT p.seq FROM {pending} p
  WHERE p.key = ANY (:keys::text[]) AND p.consumer || '' = :consumer AND p.available_at < 'infinity'
  FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT p.key FROM {pending} p
WHERE p.key = ANY (:keys::text[]) AND p.consumer || '' = :consumer AND p.available_at < 'infinity'
  AND p.seq NOT IN (SELECT free.seq FROM free);

-- name: revive
-- Dead letters go back with their old numbers: those with a key at its end, to be released in order.
WITH gone AS (
  DELETE FROM {dead} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]) RETURNING *
)
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, alone, replay, last_error,
                       available_at)
SELECT g.consumer, l.lane, g.seq, g.origin, g.message_id, g.type, g.version, g.key, g.payload,
       g.headers, g.source, g.coordinates, g.occurred_at, 1, g.deaths > 0, g.replay, g.error,
       CASE WHEN g.key IS NOT NULL THEN 'infinity'::timestamptz END
FROM gone g JOIN unnest(:ids::bigint[], :lanes::smallint[]) AS l (id, lane) ON l.id = g.id;

-- name: bury
-- Dead letters are gone for good.
DELETE FROM {dead} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]);

-- name: still_dead
-- Which of these dead letters are still there, now that their keys are locked.
SELECT id FROM {dead} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]) FOR UPDATE;

-- name: act
-- What an operator did.
INSERT INTO {action} (consumer, act, by_whom, why, dead_id, origin, message_id, reason)
SELECT :consumer, :act, :by, :why, dead_id, origin, message_id, reason
FROM unnest(:ids::bigint[], :origins::text[], :message_ids::text[], :reasons::text[])
  AS u (dead_id, origin, message_id, reason);

-- name: lease_untold
-- Dead letters that somebody is to be told of; until the lease ends nobody else tells them.
UPDATE {dead} d SET tell_at = clock_timestamp() + make_interval(secs => :lease)
FROM (SELECT u.id FROM {dead} u
      WHERE u.consumer = :consumer AND u.tell_at <= clock_timestamp()
      ORDER BY u.tell_at LIMIT :limit FOR UPDATE SKIP LOCKED) u
WHERE d.id = u.id
RETURNING d.id, d.state, d.reason, d.seq, d.origin, d.message_id, d.type, d.version, d.key, d.parks,
          d.payload, d.content_hash, d.headers::text, d.source, d.coordinates, d.occurred_at,
          d.attempts, d.deaths, d.replay, d.error, d.fingerprint, d.died_at;

-- name: told
-- Somebody was told.
UPDATE {dead} SET tell_at = NULL WHERE id = ANY (:ids::bigint[]);
