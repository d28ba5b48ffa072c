-- serves: 6

-- name: sequence_table
-- How far the numbers of a key have been admitted, and since when the next one is missing while
-- others wait for it.
CREATE TABLE {sequence} (
  consumer      TEXT NOT NULL,
  key           TEXT NOT NULL,
  epoch         TEXT NOT NULL,
  next          INTEGER,
  waiting_since INTEGER,
  PRIMARY KEY (consumer, key, epoch)
) STRICT;

-- name: sequence_waiting
-- Finds the keys whose next number is missing.
CREATE INDEX {sequence_waiting} ON {sequence} (consumer, waiting_since) WHERE waiting_since IS NOT NULL;

-- name: early
-- Messages that came before the numbers in front of them: what is needed to store them when those
-- have come. seq: NULL where a number is only kept for a message that is quarantined.
CREATE TABLE {early} (
  consumer    TEXT NOT NULL,
  key         TEXT NOT NULL,
  epoch       TEXT NOT NULL,
  number      INTEGER NOT NULL,
  seq         INTEGER,
  lane        INTEGER NOT NULL,
  origin      TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  type        TEXT NOT NULL,
  version     INTEGER NOT NULL,
  payload     BLOB NOT NULL,
  headers     TEXT,
  source      TEXT,
  coordinates TEXT,
  occurred_at INTEGER,
  alone       INTEGER NOT NULL,
  PRIMARY KEY (consumer, key, epoch, number)
) STRICT;

-- name: early_seq
-- Finds out whether a message waits for numbers.
CREATE INDEX {early_seq} ON {early} (seq);

-- name: message
-- One row per message, with its state, for people and reporting tools. Replays are not part of it.
CREATE VIEW {message} AS
SELECT i.consumer, i.origin, i.message_id, i.type, i.version, i.key, i.seq, i.source, i.coordinates,
       i.occurred_at, i.received_at, i.payload IS NOT NULL AS has_payload,
       CASE
         WHEN p.seq IS NOT NULL THEN 'pending'
         WHEN d.seq IS NOT NULL THEN d.state
         WHEN e.seq IS NOT NULL THEN 'early'
         WHEN EXISTS (SELECT 1 FROM {action} x
                      WHERE x.consumer = i.consumer AND x.origin = i.origin
                        AND x.message_id = i.message_id AND x.act = 'discard' AND x.replay = 0
                        AND x.reason IS NOT 'other bytes')
         THEN 'discarded'
         ELSE 'done'
       END AS state,
       d.reason,
       coalesce(p.attempts, d.attempts, (
         SELECT max(a.number) FROM {attempt} a
         WHERE a.consumer = i.consumer AND a.origin = i.origin AND a.message_id = i.message_id
           AND a.replay = 0
       ), CASE WHEN e.seq IS NULL THEN 1 ELSE 0 END) AS attempts,
       CASE WHEN p.seq IS NULL AND d.seq IS NULL AND e.seq IS NULL THEN coalesce((
         SELECT max(a.ended_at) FROM {attempt} a
         WHERE a.consumer = i.consumer AND a.origin = i.origin AND a.message_id = i.message_id
           AND a.replay = 0
       ), i.received_at) END AS processed_at,
       coalesce(p.last_error, d.error) AS last_error
FROM {inbox} i
LEFT JOIN {pending} p ON p.consumer = i.consumer AND p.seq = i.seq
LEFT JOIN {dead} d ON d.consumer = i.consumer AND d.seq = i.seq
LEFT JOIN {early} e ON e.consumer = i.consumer AND e.seq = i.seq;
