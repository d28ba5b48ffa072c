-- name: newest_dead_letter
-- The number of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead_letter} WHERE consumer = :consumer;

-- name: find_dead_letters
-- Dead letters and quarantine that match, in the order of their numbers.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers::text, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM {dead_letter}
WHERE consumer = :consumer AND id > :after AND id <= :up_to
  AND (:ids::bigint[] IS NULL OR id = ANY (:ids))
  AND (:keys::text[] IS NULL OR key = ANY (:keys))
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

-- name: read_committed
-- Each statement sees what was committed before it. Said before anything is read.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

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

-- name: retry_dead_letters
-- Dead letters go back with their old numbers: those with a key at its end, to be released in order.
WITH gone AS (
  DELETE FROM {dead_letter} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]) RETURNING *
)
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, replay, last_error,
                       available_at)
SELECT g.consumer, l.lane, g.seq, g.origin, g.message_id, g.type, g.version, g.key, g.payload,
       g.headers, g.source, g.coordinates, g.occurred_at, 1, g.crashes > 0, g.replay, g.error,
       CASE WHEN g.key IS NOT NULL THEN 'infinity'::timestamptz END
FROM gone g JOIN unnest(:ids::bigint[], :lanes::smallint[]) AS l (id, lane) ON l.id = g.id;

-- name: discard_dead_letters
-- Dead letters are gone for good.
DELETE FROM {dead_letter} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]);

-- name: still_dead
-- Which of these dead letters are still there, now that their keys are locked.
SELECT id FROM {dead_letter} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]) FOR UPDATE;

-- name: audit_letters
-- What an operator did.
INSERT INTO {audit} (consumer, action, by_whom, why, dead_id, origin, message_id, reason, replay)
SELECT :consumer, :action, :by, :why, dead_id, origin, message_id, reason, replay
FROM unnest(:ids::bigint[], :origins::text[], :message_ids::text[], :reasons::text[],
            :replays::bigint[])
  AS u (dead_id, origin, message_id, reason, replay);

-- name: write_audit
-- What was done to something that is no message.
INSERT INTO {audit} (consumer, action, by_whom, why, reason)
VALUES (:consumer, :action, :by, :why, :about);

-- name: has_unnotified
-- Whether somebody is to be told.
SELECT EXISTS (SELECT 1 FROM {dead_letter} WHERE consumer = :consumer AND notify_at <= clock_timestamp());

-- name: lease_unnotified
-- Dead letters that somebody is to be told of; until the lease ends nobody else tells them.
UPDATE {dead_letter} d SET notify_at = clock_timestamp() + make_interval(secs => :lease)
FROM (SELECT u.id FROM {dead_letter} u
      WHERE u.consumer = :consumer AND u.notify_at <= clock_timestamp()
      ORDER BY u.notify_at LIMIT :limit FOR UPDATE SKIP LOCKED) u
WHERE d.id = u.id
RETURNING d.id, d.state, d.reason, d.seq, d.origin, d.message_id, d.type, d.version, d.key, d.blocks_key,
          d.payload, d.content_hash, d.headers::text, d.source, d.coordinates, d.occurred_at,
          d.attempts, d.crashes, d.replay, d.error, d.fingerprint, d.dead_at;

-- name: mark_notified
-- Somebody was told.
UPDATE {dead_letter} SET notify_at = NULL WHERE id = ANY (:ids::bigint[]);
