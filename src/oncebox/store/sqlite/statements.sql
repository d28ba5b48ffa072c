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
                       source, coordinates, occurred_at, attempts, alone, deaths, replay,
                       last_error, available_at)
VALUES (:consumer, :lane, :seq, :origin, :message_id, :type, :version, :key, :payload, :headers,
        :source, :coordinates, :occurred_at, :attempts, :alone, :deaths, :replay,
        :last_error, :available_at);

-- name: store_dead
-- Dead letters and quarantine; a delivery that was quarantined before adds nothing.
INSERT INTO {dead} (consumer, state, reason, seq, origin, message_id, type, version, key, parks,
                    payload, content_hash, headers, source, coordinates, occurred_at, attempts,
                    deaths, replay, error, fingerprint, sighting, died_at, tell_at)
VALUES (:consumer, :state, :reason, :seq, :origin, :message_id, :type, :version, :key, :parks,
        :payload, :content_hash, :headers, :source, :coordinates, :occurred_at, :attempts,
        :deaths, :replay, :error, :fingerprint, :sighting, :died_at, :tell_at)
ON CONFLICT (consumer, sighting) DO NOTHING;

-- name: store_attempts
-- One row per failed run, and per run of a message that had been stored.
INSERT INTO {attempt} (consumer, origin, message_id, replay, number, outcome, error, fingerprint,
                       duration, worker, ended_at)
VALUES (:consumer, :origin, :message_id, :replay, :number, :outcome, :error, :fingerprint,
        :duration, :worker, :ended_at);

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

-- name: sign_on
-- A worker is there, and will say so again before this long.
INSERT INTO {worker} (consumer, name, incarnation, batch, started_at, beat_at, until)
VALUES (:consumer, :name, :incarnation, :batch, :now, :now, :until)
ON CONFLICT (consumer, incarnation) DO UPDATE SET beat_at = excluded.beat_at, until = excluded.until;

-- name: sign_off
-- A worker is gone.
DELETE FROM {worker} WHERE consumer = :consumer AND incarnation = :incarnation;

-- name: others
-- The workers that have not signed off, and whether they should have been heard of since.
SELECT name, incarnation, batch, until < :now FROM {worker}
WHERE consumer = :consumer AND incarnation <> :incarnation;

-- name: suspect_first
-- A worker died, perhaps of one of these: they run alone from now on.
UPDATE {pending} SET alone = 1 WHERE seq IN (
  SELECT seq FROM {pending} WHERE consumer = :consumer AND available_at IS NULL AND NOT alone
  ORDER BY seq LIMIT :limit);

-- name: wake
-- What is due is ready; the literal is repeated, or the partial index is not used.
UPDATE {pending} SET available_at = NULL
WHERE consumer = :consumer AND available_at < 9223372036854775807 AND available_at <= :now;

-- name: take
-- What is ready, in order.
SELECT lane, seq, origin, message_id, type, version, key, payload, headers, source,
       coordinates, occurred_at, attempts, alone, deaths, replay, last_error
FROM {pending} WHERE consumer = :consumer AND available_at IS NULL ORDER BY seq LIMIT :limit;

-- name: is_work
-- Whether anything is ready or due.
SELECT EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer AND available_at IS NULL)
    OR EXISTS (SELECT 1 FROM {pending} WHERE consumer = :consumer
               AND available_at < 9223372036854775807 AND available_at <= :now);

-- name: remove
-- Take these messages out.
DELETE FROM {pending} WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: park_followers
-- Everything behind this message of its key waits, also what had a retry time of its own.
UPDATE {pending} SET available_at = 9223372036854775807
WHERE consumer = :consumer AND key = :key AND seq > :seq;

-- name: release
-- What waits for these keys may run, up to the next retrying head or parking dead letter.
UPDATE {pending} AS p SET available_at = NULL
WHERE p.consumer = :consumer AND p.key IN (SELECT value FROM json_each(:keys))
  AND p.available_at = 9223372036854775807
  AND NOT EXISTS (SELECT 1 FROM {pending} h
                  WHERE h.consumer = p.consumer AND h.key = p.key AND h.seq < p.seq
                    AND h.available_at < 9223372036854775807)
  AND NOT EXISTS (SELECT 1 FROM {dead} d
                  WHERE d.consumer = p.consumer AND d.key = p.key AND d.parks AND d.seq < p.seq);

-- name: put_off
-- A message is about to run alone: its death is recorded in advance. The time is its token. Or it
-- is only put off.
UPDATE {pending} SET deaths = deaths + :died, last_error = coalesce(:error, last_error),
  available_at = :token
WHERE seq = :seq AND available_at IS NULL AND deaths = :deaths
RETURNING available_at;

-- name: take_alone
-- Take out the message that runs alone; no row where it was overtaken.
DELETE FROM {pending} WHERE seq = :seq AND available_at = :token RETURNING seq;

-- name: absolve
-- It did not die after all. A run that had begun counts as an attempt; one whose token is still its
-- own may be run again soon.
UPDATE {pending} SET deaths = deaths - 1, attempts = attempts + :counted,
  last_error = coalesce(:error, last_error),
  available_at = CASE WHEN available_at = :token THEN :soon ELSE available_at END
WHERE seq = :seq AND deaths > 0;

-- name: suspect
-- These messages run alone from now on: one of them keeps the others from being committed.
UPDATE {pending} SET alone = 1
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND available_at IS NULL;

-- name: vanished
-- Whether a message is neither pending nor dead, and was not finished by somebody else: every run of
-- a stored message leaves a row.
SELECT 1
WHERE NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.consumer = :consumer AND d.seq = :seq)
  AND NOT EXISTS (SELECT 1 FROM {attempt} a WHERE a.consumer = :consumer AND a.origin = :origin
                  AND a.message_id = :id AND a.replay = :replay AND a.number > :number);

-- name: count_deaths
-- How many messages run alone or have killed their process lately.
SELECT (SELECT count(*) FROM {pending} WHERE consumer = :consumer AND deaths > 0)
     + (SELECT count(*) FROM {dead} WHERE consumer = :consumer AND deaths > 0
        AND died_at > :lately);

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

-- name: bury
-- Dead letters are gone for good.
DELETE FROM {dead} WHERE consumer = :consumer AND id IN (SELECT value FROM json_each(:ids));

-- name: act
-- What an operator did.
INSERT INTO {action} (consumer, act, by_whom, why, dead_id, origin, message_id, reason, acted_at)
VALUES (:consumer, :act, :by, :why, :id, :origin, :message_id, :reason, :now);

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
