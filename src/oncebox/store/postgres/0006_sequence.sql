-- serves: 6

-- name: sequence_table
-- How far the numbers of a key have been admitted, and since when the next one is missing while
-- others wait for it. Only touched under the lock of the key.
CREATE TABLE {sequence} (
  consumer      text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  epoch         text COLLATE "C" NOT NULL,
  next          bigint,
  waiting_since timestamptz,
  PRIMARY KEY (consumer, key, epoch)
) WITH (fillfactor = 70);

-- name: sequence_waiting
-- Finds the keys whose next number is missing.
CREATE INDEX {sequence_waiting} ON {sequence} (consumer, waiting_since) WHERE waiting_since IS NOT NULL;

-- name: early
-- Messages that came before the numbers in front of them: what is needed to store them when those
-- have come. seq: NULL where a number is only kept for a message that is quarantined.
CREATE TABLE {early} (
  consumer    text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  epoch       text COLLATE "C" NOT NULL,
  number      bigint NOT NULL,
  seq         bigint,
  lane        smallint NOT NULL,
  origin      text COLLATE "C" NOT NULL,
  message_id  text COLLATE "C" NOT NULL,
  type        text NOT NULL,
  version     integer NOT NULL,
  payload     bytea NOT NULL,
  headers     json,
  source      text,
  coordinates text,
  occurred_at timestamptz,
  alone       boolean NOT NULL,
  PRIMARY KEY (consumer, key, epoch, number)
);

-- name: early_seq
-- Finds out whether a message waits for numbers.
CREATE INDEX {early_seq} ON {early} (seq);

-- name: pull
-- The time of some messages has come: they are stored at the end of their keys, with new numbers in
-- the order given, to be released. In one statement: whatever happens, they are in one of the two.
CREATE FUNCTION {pull}(p_consumer text, p_keys text[], p_epochs text[], p_numbers bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $pull$
BEGIN
  WITH wanted AS MATERIALIZED (
    SELECT nextval('{seq}') AS fresh, u.*
    FROM unnest(p_keys, p_epochs, p_numbers) WITH ORDINALITY AS u (key, epoch, number, n)
  ), pulled AS (
    DELETE FROM {early} e USING wanted w
    WHERE e.consumer = p_consumer AND e.key = w.key AND e.epoch = w.epoch AND e.number = w.number
    RETURNING w.fresh, e.*
  ), stored AS (
    INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                           headers, source, coordinates, occurred_at, alone, available_at)
    SELECT p.consumer, p.lane, p.fresh, p.origin, p.message_id, p.type, p.version, p.key, p.payload,
           p.headers, p.source, p.coordinates, p.occurred_at, p.alone, 'infinity'
    FROM pulled p WHERE p.seq IS NOT NULL
  )
  UPDATE {inbox} i SET seq = p.fresh FROM pulled p
  WHERE i.consumer = p_consumer AND i.origin = p.origin AND i.message_id = p.message_id
    AND p.seq IS NOT NULL;
END
$pull$;

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
                        AND x.reason IS DISTINCT FROM 'other bytes')
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
