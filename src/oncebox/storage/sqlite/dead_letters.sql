-- name: newest_dead_letter
-- The number of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead_letter} WHERE consumer = :consumer;

-- name: find_dead_letters
-- Dead letters and quarantine that match, in the order of their numbers.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM {dead_letter}
WHERE consumer = :consumer AND id > :after AND id <= :up_to
  AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND (:keys IS NULL OR key IN (SELECT value FROM json_each(:keys)))
  AND (:state IS NULL OR state = :state)
  AND (:reason IS NULL OR reason = :reason)
  AND (:type IS NULL OR type = :type)
  AND (:key IS NULL OR key = :key)
  AND (:origin IS NULL OR origin = :origin)
  AND (:message_id IS NULL OR message_id = :message_id)
  AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
ORDER BY id LIMIT :limit;

-- name: still_dead
-- Which of these dead letters are still there, now that nobody else can write.
SELECT id FROM {dead_letter} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: retry_dead_letters
-- A dead letter goes back with its old number: one with a key at its end, to be released in order.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, replay, last_error,
                       available_at)
SELECT consumer, :lane, seq, origin, message_id, type, version, key, payload, headers,
       source, coordinates, occurred_at, 1, crashes > 0, replay, error,
       CASE WHEN key IS NOT NULL THEN 9223372036854775807 END
FROM {dead_letter} WHERE id = :id;

-- name: discard_dead_letters
-- Dead letters are gone for good.
DELETE FROM {dead_letter} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: audit_letters
-- What an operator did.
INSERT INTO {audit} (consumer, action, by_whom, why, dead_id, origin, message_id, reason, replay,
                      acted_at)
VALUES (:consumer, :action, :by, :why, :id, :origin, :message_id, :reason, :replay, :now);

-- name: write_audit
-- What was done to something that is no message.
INSERT INTO {audit} (consumer, action, by_whom, why, reason, acted_at)
VALUES (:consumer, :action, :by, :why, :about, :now);

-- name: has_unnotified
-- Whether somebody is to be told.
SELECT EXISTS (SELECT 1 FROM {dead_letter}
               WHERE consumer = :consumer AND notify_at IS NOT NULL AND notify_at <= :now);

-- name: untold
-- Dead letters that somebody is to be told of.
SELECT id, state, reason, seq, origin, message_id, type, version, key, blocks_key, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, crashes, replay, error,
       fingerprint, dead_at
FROM {dead_letter} WHERE consumer = :consumer AND notify_at IS NOT NULL AND notify_at <= :now
ORDER BY notify_at LIMIT :limit;

-- name: lease_unnotified
-- Until the lease ends nobody else tells them.
UPDATE {dead_letter} SET notify_at = :until WHERE id IN (SELECT value FROM json_each(:ids));

-- name: mark_notified
-- Somebody was told.
UPDATE {dead_letter} SET notify_at = NULL WHERE id IN (SELECT value FROM json_each(:ids));
