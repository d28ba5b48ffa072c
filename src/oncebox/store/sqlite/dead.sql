-- name: newest_dead
-- The number of the newest dead letter.
SELECT coalesce(max(id), 0) FROM {dead} WHERE consumer = :consumer;

-- name: find_dead
-- Dead letters and quarantine that match, in the order of their numbers.
SELECT id, state, reason, seq, origin, message_id, type, version, key, parks, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, deaths, replay, error,
       fingerprint, died_at
FROM {dead}
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
SELECT id FROM {dead} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: revive
-- A dead letter goes back with its old number: one with a key at its end, to be released in order.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, alone, replay, last_error,
                       available_at)
SELECT consumer, :lane, seq, origin, message_id, type, version, key, payload, headers,
       source, coordinates, occurred_at, 1, deaths > 0, replay, error,
       CASE WHEN key IS NOT NULL THEN 9223372036854775807 END
FROM {dead} WHERE id = :id;

-- name: put_away
-- Dead letters are gone for good.
DELETE FROM {dead} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: act
-- What an operator did.
INSERT INTO {action} (consumer, act, by_whom, why, dead_id, origin, message_id, reason, replay,
                      acted_at)
VALUES (:consumer, :act, :by, :why, :id, :origin, :message_id, :reason, :replay, :now);

-- name: note
-- What was done to something that is no message.
INSERT INTO {action} (consumer, act, by_whom, why, reason, acted_at)
VALUES (:consumer, :act, :by, :why, :about, :now);

-- name: has_untold
-- Whether somebody is to be told.
SELECT EXISTS (SELECT 1 FROM {dead}
               WHERE consumer = :consumer AND tell_at IS NOT NULL AND tell_at <= :now);

-- name: untold
-- Dead letters that somebody is to be told of.
SELECT id, state, reason, seq, origin, message_id, type, version, key, parks, payload, content_hash,
       headers, source, coordinates, occurred_at, attempts, deaths, replay, error,
       fingerprint, died_at
FROM {dead} WHERE consumer = :consumer AND tell_at IS NOT NULL AND tell_at <= :now
ORDER BY tell_at LIMIT :limit;

-- name: lease_untold
-- Until the lease ends nobody else tells them.
UPDATE {dead} SET tell_at = :until WHERE id IN (SELECT value FROM json_each(:ids));

-- name: told
-- Somebody was told.
UPDATE {dead} SET tell_at = NULL WHERE id IN (SELECT value FROM json_each(:ids));
