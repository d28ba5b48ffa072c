-- name: create_meta
-- The schema's version, and the oldest version that code must know to work with it.
CREATE TABLE IF NOT EXISTS {meta} (version INTEGER NOT NULL, serves INTEGER NOT NULL) STRICT;

-- name: has_meta
-- Whether the tables are there.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :meta;

-- name: read_meta
-- The schema's version and what it serves.
SELECT version, serves FROM {meta};

-- name: clear_meta
-- The version is one row: delete the old one,
DELETE FROM {meta};

-- name: write_meta
-- and write the new one.
INSERT INTO {meta} (version, serves) VALUES (:version, :serves);

-- name: take_write_lock
-- On a transaction that the caller opened: become its writer, or learn at once that it cannot.
DELETE FROM {inbox} WHERE 0;

-- name: known
-- Which of these messages are in the inbox already, with their hashes.
SELECT r.key, i.content_hash
FROM json_each(:messages) r
CROSS JOIN {inbox} i ON i.consumer = :consumer
  AND i.origin = json_extract(r.value, '$[0]') AND i.message_id = json_extract(r.value, '$[1]');

-- name: draw_seq
-- Draw so many numbers; the answer is the last of them.
UPDATE {seq} SET last = last + :count RETURNING last;

-- name: insert
-- A claim. The write lock is held, so a conflict here would be a fault of ours: it raises.
INSERT INTO {inbox} (seq, consumer, origin, message_id, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, minted_at, received_at)
VALUES (:seq, :consumer, :origin, :message_id, :type, :version, :key, :payload, :content_hash,
        :headers, :source, :coordinates, :occurred_at, :minted_at, :received_at);

-- name: unclaim
-- Take back what a refused claim() inserted a moment ago in this same transaction.
DELETE FROM {inbox} WHERE seq = :seq;

-- name: waiting
-- The keys that have unfinished messages, and whether these wait.
SELECT key, max(waits) FROM (
  SELECT p.key AS key, p.available_at IS NOT NULL AS waits
  FROM {pending} p WHERE p.consumer = :consumer AND p.key IN (SELECT value FROM json_each(:keys))
  UNION ALL
  SELECT d.key, 1
  FROM {dead} d
  WHERE d.consumer = :consumer AND d.parks AND d.key IN (SELECT value FROM json_each(:keys))
) GROUP BY key;

-- name: watermark
-- Nothing older can be told from a duplicate.
SELECT purged_before FROM {consumer} WHERE consumer = :consumer;

-- name: probe
-- Set after the claim: as long as it can be released, this is still the claim's transaction.
SAVEPOINT oncebox_probe;

-- name: guard
-- Fails unless this is still the transaction of the claim.
RELEASE SAVEPOINT oncebox_probe;

-- name: store_pending
-- What failed or has to wait.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, alone, last_error, available_at)
VALUES (:consumer, :lane, :seq, :origin, :message_id, :type, :version, :key, :payload, :headers,
        :source, :coordinates, :occurred_at, :attempts, :alone, :last_error, :available_at);

-- name: store_dead
-- Dead letters and quarantine; a delivery that was quarantined before adds nothing.
INSERT INTO {dead} (consumer, state, reason, seq, origin, message_id, type, version, key, parks,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    error, fingerprint, sighting, died_at)
VALUES (:consumer, :state, :reason, :seq, :origin, :message_id, :type, :version, :key, :parks,
        :payload, :content_hash, :headers, :source, :coordinates, :occurred_at, :attempts,
        :error, :fingerprint, :sighting, :died_at)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run.
INSERT INTO {attempt} (consumer, origin, message_id, number, outcome, error, fingerprint, duration,
                       worker, ended_at)
VALUES (:consumer, :origin, :message_id, :number, :outcome, :error, :fingerprint, :duration,
        :worker, :ended_at);

-- name: count
-- The counters of this worker and minute.
INSERT INTO {minute} (consumer, minute, worker, received, done, duplicate, failed, parked,
                      stored, dead, quarantined, ignored)
VALUES (:consumer, :minute, :worker, :received, :done, :duplicate, :failed, :parked,
        :stored, :dead, :quarantined, :ignored)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = received + excluded.received, done = done + excluded.done,
  duplicate = duplicate + excluded.duplicate, failed = failed + excluded.failed,
  parked = parked + excluded.parked, stored = stored + excluded.stored,
  dead = dead + excluded.dead, quarantined = quarantined + excluded.quarantined,
  ignored = ignored + excluded.ignored;
