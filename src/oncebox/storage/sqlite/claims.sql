-- name: take_write_lock
-- In a transaction that the caller opened: takes the write lock, or fails at once.
DELETE FROM {inbox} WHERE 0;

-- name: known
-- Which of these messages are already in the inbox, with their hashes.
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
-- Inserts a claim. The write lock is held, so a conflict here is a bug in oncebox and raises.
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
-- Which claims of a transaction were committed. The seqs of a transaction that was rolled back are
-- drawn again, so the time of the claim is compared too.
SELECT i.seq FROM json_each(:messages) r
CROSS JOIN {inbox} i ON i.consumer = :consumer
  AND i.origin = json_extract(r.value, '$[0]') AND i.message_id = json_extract(r.value, '$[1]')
WHERE i.seq = json_extract(r.value, '$[2]') AND i.received_at = :received_at;

-- name: release_claims
-- Deletes the claims that this transaction has just inserted, because claim() refuses them.
DELETE FROM {inbox} WHERE seq = :seq;

-- name: waiting
-- The keys that have unfinished messages, and whether these are blocked: if any is, the newest is.
SELECT k.value, max(coalesce(
         (SELECT p.available_at IS NOT NULL FROM {pending} p
          WHERE p.consumer = :consumer AND p.key = k.value ORDER BY p.seq DESC LIMIT 1), 0),
       EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.blocks_key AND d.key = k.value))
FROM json_each(:keys) k
WHERE EXISTS (SELECT 1 FROM {pending} p WHERE p.consumer = :consumer AND p.key = k.value)
   OR EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.consumer = :consumer AND d.blocks_key AND d.key = k.value);

-- name: probe
-- Set after the claim. As long as this savepoint can be released, this is the transaction of the claim.
SAVEPOINT oncebox_probe;

-- name: guard
-- Fails unless this is still the transaction of the claim.
RELEASE SAVEPOINT oncebox_probe;

-- name: store_pending
-- Stores messages that failed or have to wait.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload, headers,
                       source, coordinates, occurred_at, attempts, isolated, crashes, replay,
                       last_error, available_at)
VALUES (:consumer, :lane, :seq, :origin, :message_id, :type, :version, :key, :payload, :headers,
        :source, :coordinates, :occurred_at, :attempts, :isolated, :crashes, :replay,
        :last_error, :available_at);

-- name: store_dead_letters
-- Stores dead letters and quarantined deliveries. A delivery that is already quarantined adds no row.
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
-- Counters of this worker and minute.
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
-- Blocks all messages behind this message of its key, including those that had a retry time.
UPDATE {pending} SET available_at = 9223372036854775807
WHERE consumer = :consumer AND key = :key AND seq > :seq
  AND available_at IS NOT 9223372036854775807;

-- name: release
-- Makes the blocked messages of a key ready, up to the next message to be retried or the next dead
-- letter that blocks the key. One key at a time: one statement for many keys would search that limit
-- again for every message of a long queue. The plus sign keeps SQLite from reading all messages to be
-- retried.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND key = :key AND available_at = 9223372036854775807
  AND seq < min(
    coalesce((SELECT min(h.seq) FROM {pending} h WHERE h.consumer = :consumer AND h.key = :key
              AND +h.available_at < 9223372036854775807), 9223372036854775807),
    coalesce((SELECT min(d.seq) FROM {dead_letter} d WHERE d.consumer = :consumer AND d.key = :key
              AND d.blocks_key), 9223372036854775807));
