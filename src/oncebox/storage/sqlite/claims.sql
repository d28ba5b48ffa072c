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
-- Draw :count arrival numbers. Returns the last of them, and the time before which messages are
-- purged: an older message cannot be told from a duplicate. SQLite keeps seq for AUTOINCREMENT.
UPDATE sqlite_sequence SET seq = seq + :count WHERE name = trim('{inbox}', '"')
RETURNING seq, (SELECT purged_before FROM {consumer} WHERE consumer = :consumer);

-- name: insert
-- A claim. The write lock is held, so a conflict here would be a fault of ours: it raises.
INSERT INTO {inbox} (seq, consumer, origin, message_id, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, produced_at, received_at, by_caller)
VALUES (:seq, :consumer, :origin, :message_id, :type, :version, :key, :payload, :content_hash,
        :headers, :source, :coordinates, :occurred_at, :produced_at, :received_at, :by_caller);

-- name: count_failures
-- How often a message failed in the caller's own loop.
SELECT count(*) FROM {attempt}
WHERE consumer = :consumer AND origin = :origin AND message_id = :message_id
  AND outcome = 'failed';

-- name: committed_claims
-- Which claims of a transaction were committed. A transaction that was rolled back gives its numbers
-- back, so the time of the claim is compared too.
SELECT i.seq FROM json_each(:messages) r
CROSS JOIN {inbox} i ON i.consumer = :consumer
  AND i.origin = json_extract(r.value, '$[0]') AND i.message_id = json_extract(r.value, '$[1]')
WHERE i.seq = json_extract(r.value, '$[2]') AND i.received_at = :received_at;

-- name: release_claims
-- Take back what a refused claim() inserted a moment ago in this same transaction.
DELETE FROM {inbox} WHERE seq = :seq;

-- name: waiting
-- The keys that have unfinished messages, and whether these wait: if any does, the newest does.
SELECT k.value, max(coalesce(
         (SELECT p.available_at IS NOT NULL FROM {pending} p
          WHERE p.consumer = :consumer AND p.key = k.value ORDER BY p.seq DESC LIMIT 1), 0),
       EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.blocks_key AND d.key = k.value))
FROM json_each(:keys) k
WHERE EXISTS (SELECT 1 FROM {pending} p WHERE p.consumer = :consumer AND p.key = k.value)
   OR EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.blocks_key AND d.key = k.value);

-- name: probe
-- Set after the claim: as long as it can be released, this is still the claim's transaction.
SAVEPOINT oncebox_probe;

-- name: guard
-- Fails unless this is still the transaction of the claim.
RELEASE SAVEPOINT oncebox_probe;

-- name: store_pending
-- What failed or has to wait.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, crashes, replay,
                       last_error, available_at)
VALUES (:consumer, :lane, :seq, :origin, :message_id, :type, :version, :key, :payload, :headers,
        :source, :coordinates, :occurred_at, :attempts, :isolated, :crashes, :replay,
        :last_error, :available_at);

-- name: store_dead_letters
-- Dead letters and quarantine; a delivery that was quarantined before adds nothing.
INSERT INTO {dead_letter} (consumer, state, reason, seq, origin, message_id, type, version, key, blocks_key,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    crashes, replay, error, fingerprint, sighting, dead_at, notify_at)
VALUES (:consumer, :state, :reason, :seq, :origin, :message_id, :type, :version, :key, :blocks_key,
        :payload, :content_hash, :headers, :source, :coordinates, :occurred_at, :attempts,
        :crashes, :replay, :error, :fingerprint, :sighting, :dead_at, :notify_at)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run, and per run of a message that had been stored.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker, ended_at)
VALUES (:consumer, :origin, :message_id, :replay, :number, :outcome, :error, :fingerprint,
        :duration, :worker, :ended_at);

-- name: count
-- The counters of this worker and minute.
INSERT INTO {minute_counter} (consumer, minute, worker, received, done, duplicate, failed, blocked,
                      stored, dead, quarantined, ignored)
VALUES (:consumer, :minute, :worker, :received, :done, :duplicate, :failed, :blocked,
        :stored, :dead, :quarantined, :ignored)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = received + excluded.received, done = done + excluded.done,
  duplicate = duplicate + excluded.duplicate, failed = failed + excluded.failed,
  blocked = blocked + excluded.blocked, stored = stored + excluded.stored,
  dead = dead + excluded.dead, quarantined = quarantined + excluded.quarantined,
  ignored = ignored + excluded.ignored;

-- name: block_followers
-- Everything behind this message of its key waits, also what had a retry time of its own.
UPDATE {pending} SET available_at = 9223372036854775807
WHERE consumer = :consumer AND key = :key AND seq > :seq
  AND available_at IS NOT 9223372036854775807;

-- name: release
-- What waits for a key may run, up to the next retrying head or parking dead letter. One key at a
-- time: with many, where that is would be found out for each message of a long tail anew. The plus
-- sign keeps SQLite from reading whatever is retrying.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND key = :key AND available_at = 9223372036854775807
  AND seq < min(
    coalesce((SELECT min(h.seq) FROM {pending} h WHERE h.consumer = :consumer AND h.key = :key
              AND +h.available_at < 9223372036854775807), 9223372036854775807),
    coalesce((SELECT min(d.seq) FROM {dead_letter} d WHERE d.consumer = :consumer AND d.key = :key
              AND d.blocks_key), 9223372036854775807));
