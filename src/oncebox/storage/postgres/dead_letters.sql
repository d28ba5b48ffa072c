-- name: newest_dead_letter
-- The id of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead_letter} WHERE consumer = :consumer;

-- name: matching_dead_letters
-- Dead letters and quarantined deliveries that match a filter. A delivery that was never claimed has the
-- time of its quarantine as the time when it was received.
SELECT d.* FROM {dead_letter} d
WHERE d.consumer = :consumer
  AND (:message_ids::text[] IS NULL OR d.message_id = ANY (:message_ids))
  AND (:state::text IS NULL OR d.state = :state)
  AND (:reason::text IS NULL OR d.reason = :reason)
  AND (:type::text IS NULL OR d.type = :type)
  AND (:key::text IS NULL OR d.key = :key)
  AND (:origin::text IS NULL OR d.origin = :origin)
  AND (:fingerprint::text IS NULL OR d.fingerprint = :fingerprint)
  AND (:since::timestamptz IS NULL OR :since <= coalesce(
        (SELECT i.received_at FROM {inbox} i
         WHERE i.consumer = d.consumer AND i.origin = d.origin AND i.message_id = d.message_id
           AND d.seq IS NOT NULL), d.dead_at))
  AND (:until::timestamptz IS NULL OR :until > coalesce(
        (SELECT i.received_at FROM {inbox} i
         WHERE i.consumer = d.consumer AND i.origin = d.origin AND i.message_id = d.message_id
           AND d.seq IS NOT NULL), d.dead_at));

-- name: find_dead_letters
-- Some of the dead letters that match, ordered by id. MATCHING is the statement above.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers::text, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM (MATCHING) d
WHERE id > :after AND id <= :up_to
  AND (:ids::bigint[] IS NULL OR id = ANY (:ids))
  AND (:keys::text[] IS NULL OR key = ANY (:keys))
ORDER BY id LIMIT :limit;

-- name: isolation
-- The isolation level of this transaction.
SELECT current_setting('transaction_isolation');

-- name: read_committed
-- Each statement sees what was committed before it. Must come before anything is read.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- name: busy_keys
-- The keys that have a message running in isolation. For the other keys, locks the message to be
-- retried.
WITH free AS (
  SELECT p.seq FROM {pending} p
  WHERE p.key = ANY (:keys::text[]) AND p.consumer || '' = :consumer AND p.available_at < 'infinity'
  FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT p.key FROM {pending} p
WHERE p.key = ANY (:keys::text[]) AND p.consumer || '' = :consumer AND p.available_at < 'infinity'
  AND p.seq NOT IN (SELECT free.seq FROM free);

-- name: retry_dead_letters
-- Makes dead letters pending again, with their old seqs. Those with a key are blocked until release
-- runs.
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
-- Deletes dead letters.
DELETE FROM {dead_letter} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]);

-- name: still_dead
-- Which of these dead letters still exist, now that their keys are locked.
SELECT id FROM {dead_letter} WHERE consumer = :consumer AND id = ANY (:ids::bigint[]) FOR UPDATE;

-- name: audit_letters
-- Records an operator's action on dead letters.
INSERT INTO {audit} (consumer, action, by_whom, why, dead_id, origin, message_id, reason, replay)
SELECT :consumer, :action, :by, :why, dead_id, origin, message_id, reason, replay
FROM unnest(:ids::bigint[], :origins::text[], :message_ids::text[], :reasons::text[],
            :replays::bigint[])
  AS u (dead_id, origin, message_id, reason, replay);

-- name: write_audit
-- Records an operator's action that does not concern a single message.
INSERT INTO {audit} (consumer, action, by_whom, why, reason)
VALUES (:consumer, :action, :by, :why, :about);

-- name: has_unnotified
-- Whether the hooks of a dead letter are due.
SELECT EXISTS (SELECT 1 FROM {dead_letter} WHERE consumer = :consumer AND notify_at <= clock_timestamp());

-- name: lease_unnotified
-- Dead letters whose hooks are due. No other worker gets them until the lease ends.
UPDATE {dead_letter} d SET notify_at = clock_timestamp() + make_interval(secs => :lease)
FROM (SELECT u.id FROM {dead_letter} u
      WHERE u.consumer = :consumer AND u.notify_at <= clock_timestamp()
      ORDER BY u.notify_at LIMIT :limit FOR UPDATE SKIP LOCKED) u
WHERE d.id = u.id
RETURNING d.id, d.state, d.reason, d.seq, d.origin, d.message_id, d.type, d.version, d.key, d.blocks_key,
          d.payload, d.content_hash, d.headers::text, d.source, d.coordinates, d.occurred_at,
          d.attempts, d.crashes, d.replay, d.error, d.fingerprint, d.dead_at;

-- name: mark_notified
-- Records that the hooks of these dead letters were called.
UPDATE {dead_letter} SET notify_at = NULL WHERE id = ANY (:ids::bigint[]);
