-- name: newest_dead_letter
-- The id of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead_letter} WHERE consumer = :consumer;

-- name: matching_dead_letters
-- Dead letters and quarantined deliveries that match a filter. A delivery that was never claimed has the
-- time of its quarantine as the time when it was received.
SELECT d.* FROM {dead_letter} d
WHERE d.consumer = :consumer
  AND (:message_ids IS NULL OR d.message_id IN (SELECT value FROM json_each(:message_ids)))
  AND (:state IS NULL OR d.state = :state)
  AND (:reason IS NULL OR d.reason = :reason)
  AND (:type IS NULL OR d.type = :type)
  AND (:key IS NULL OR d.key = :key)
  AND (:origin IS NULL OR d.origin = :origin)
  AND (:fingerprint IS NULL OR d.fingerprint = :fingerprint)
  AND (:since IS NULL OR :since <= coalesce(
        (SELECT i.received_at FROM {inbox} i
         WHERE i.consumer = d.consumer AND i.origin = d.origin AND i.message_id = d.message_id
           AND d.seq IS NOT NULL), d.dead_at))
  AND (:until IS NULL OR :until > coalesce(
        (SELECT i.received_at FROM {inbox} i
         WHERE i.consumer = d.consumer AND i.origin = d.origin AND i.message_id = d.message_id
           AND d.seq IS NOT NULL), d.dead_at));

-- name: find_dead_letters
-- Some of the dead letters that match, ordered by id. MATCHING is the statement above.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM (MATCHING) d
WHERE id > :after AND id <= :up_to
  AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND (:keys IS NULL OR key IN (SELECT value FROM json_each(:keys)))
ORDER BY id LIMIT :limit;

-- name: still_dead
-- Which of these dead letters still exist, now that no other process can write.
SELECT id FROM {dead_letter} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: retry_dead_letters
-- Makes a dead letter pending again, with its old seq. One with a key is blocked until release runs.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, replay, last_error,
                       available_at)
SELECT consumer, :lane, seq, origin, message_id, type, version, key, payload, headers,
       source, coordinates, occurred_at, 1, crashes > 0, replay, error,
       CASE WHEN key IS NOT NULL THEN 9223372036854775807 END
FROM {dead_letter} WHERE id = :id;

-- name: discard_dead_letters
-- Deletes dead letters.
DELETE FROM {dead_letter} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: audit_letters
-- Records an operator's action on dead letters.
INSERT INTO {audit} (consumer, action, by_whom, why, dead_id, origin, message_id, reason, replay,
                      acted_at)
VALUES (:consumer, :action, :by, :why, :id, :origin, :message_id, :reason, :replay, :now);

-- name: write_audit
-- Records an operator's action that does not concern a single message.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, acted_at)
VALUES (:consumer, :action, :by, :why, :about, :now);

-- name: has_unnotified
-- Whether the hooks of a dead letter are due.
SELECT EXISTS (SELECT 1 FROM {dead_letter}
               WHERE consumer = :consumer AND notify_at IS NOT NULL AND notify_at <= :now);

-- name: unnotified
-- Dead letters whose hooks are due.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM {dead_letter} WHERE consumer = :consumer AND notify_at IS NOT NULL AND notify_at <= :now
ORDER BY notify_at LIMIT :limit;

-- name: lease_unnotified
-- Until the lease ends, no other worker gets these dead letters.
UPDATE {dead_letter} SET notify_at = :until WHERE id IN (SELECT value FROM json_each(:ids));

-- name: mark_notified
-- Records that the hooks of these dead letters were called.
UPDATE {dead_letter} SET notify_at = NULL WHERE id IN (SELECT value FROM json_each(:ids));
