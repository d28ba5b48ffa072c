-- name: claim_one
-- Claims one message in the caller's transaction. Inserts no row unless it is new. Without RETURNING,
-- which would take a third of the time: sqlite3 knows the number of inserted rows.
INSERT INTO {inbox} (consumer, origin, message_id, type, version, key, payload, content_hash, headers,
                     source, coordinates, occurred_at, produced_at, received_at, by_caller)
VALUES (:consumer, :origin, :message_id, :type, :version, :key, :payload, :content_hash, :headers,
        :source, :coordinates, :occurred_at, :produced_at, :received_at, 1)
ON CONFLICT (consumer, origin, message_id) DO NOTHING;

-- name: has_other_payload
-- Whether a message was claimed before with another payload.
SELECT content_hash <> :content_hash FROM {inbox}
WHERE consumer = :consumer AND origin = :origin AND message_id = :message_id;

-- name: too_late
-- The watermark, if it is newer than a message.
SELECT purged_before FROM {consumer} WHERE consumer = :consumer AND purged_before > :produced_at;

-- name: release_claim
-- Undoes the claim of a message that is too late, in the same transaction.
DELETE FROM {inbox}
WHERE consumer = :consumer AND origin = :origin AND message_id = :message_id;

-- name: count_duplicates
-- Counts duplicates in the caller's transaction.
INSERT INTO {minute_counter} (consumer, minute, worker, received, duplicate)
VALUES (:consumer, :minute, 'claim', :count, :count)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = received + excluded.received, duplicate = duplicate + excluded.duplicate;
