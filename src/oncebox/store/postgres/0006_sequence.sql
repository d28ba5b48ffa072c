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

-- name: numbers
-- How far the numbers of some keys are, as far as they have begun, and the lowest of those that wait.
-- Here and below, LIMIT and ORDER BY leave no choice but to look each key up: a plan made when the
-- tables were tiny would as soon read them whole.
CREATE FUNCTION {numbers}(p_consumer text, p_keys text[], p_epochs text[], p_limit integer)
RETURNS TABLE (key text, epoch text, next bigint, early bigint[])
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $numbers$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT u.key, u.epoch, s.next,
           ARRAY(SELECT e.number FROM {early} e
                 WHERE e.consumer = p_consumer AND e.key = u.key AND e.epoch = u.epoch
                 ORDER BY e.number LIMIT p_limit)
    FROM unnest(p_keys, p_epochs) AS u (key, epoch)
    CROSS JOIN LATERAL (
      SELECT c.next FROM {sequence} c
      WHERE c.consumer = p_consumer AND c.key = u.key AND c.epoch = u.epoch LIMIT 1
    ) s;
END
$numbers$;

-- name: gaps
-- The numbers that are waited for, the longest first. What is only noted to wait may be through.
CREATE FUNCTION {gaps}(
  p_consumer text, p_age double precision, p_key text, p_longest bigint, p_limit integer
) RETURNS TABLE (
  key text, epoch text, next bigint, lowest bigint, early bigint, waiting_since timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $gaps$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT g.key, g.epoch, g.next, g.lowest,
           (SELECT count(*) FROM {early} e
            WHERE e.consumer = g.consumer AND e.key = g.key AND e.epoch = g.epoch),
           g.waiting_since
    FROM (
      SELECT s.*, (SELECT min(e.number) FROM {early} e
                   WHERE e.consumer = s.consumer AND e.key = s.key AND e.epoch = s.epoch) AS lowest
      FROM {sequence} s
      WHERE s.consumer = p_consumer AND s.waiting_since IS NOT NULL
        AND s.waiting_since <= clock_timestamp() - make_interval(secs => p_age)
        AND (p_key IS NULL OR s.key = p_key)
    ) g
    WHERE g.lowest IS NOT NULL
      AND (p_longest IS NULL OR g.next IS NULL OR g.lowest - g.next <= p_longest)
    ORDER BY g.waiting_since LIMIT p_limit;
END
$gaps$;

-- name: cut_lines
-- Keys whose next number waits already: there were too many to be stored at once.
CREATE FUNCTION {cut_lines}(p_consumer text, p_limit integer) RETURNS TABLE (key text, epoch text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $cut_lines$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT s.key, s.epoch FROM {sequence} s
    WHERE s.consumer = p_consumer AND s.waiting_since IS NOT NULL
      AND s.next = (SELECT min(e.number) FROM {early} e
                    WHERE e.consumer = s.consumer AND e.key = s.key AND e.epoch = s.epoch)
    ORDER BY s.waiting_since LIMIT p_limit;
END
$cut_lines$;

-- name: pull
-- The time of some messages has come: they are stored at the end of their keys, with new numbers in
-- the order given, to be released. One by one, so that each is looked up.
CREATE FUNCTION {pull}(p_consumer text, p_keys text[], p_epochs text[], p_numbers bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $pull$
DECLARE
  v record;
  v_early {early};
  v_fresh bigint;
BEGIN
  FOR v IN
    SELECT u.* FROM unnest(p_keys, p_epochs, p_numbers) WITH ORDINALITY AS u (key, epoch, number, n)
    ORDER BY u.n
  LOOP
    DELETE FROM {early} e
    WHERE e.consumer = p_consumer AND e.key = v.key AND e.epoch = v.epoch AND e.number = v.number
    RETURNING e.* INTO v_early;
    CONTINUE WHEN v_early.seq IS NULL;
    v_fresh := nextval('{seq}');
    INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                           headers, source, coordinates, occurred_at, alone, available_at)
    VALUES (p_consumer, v_early.lane, v_fresh, v_early.origin, v_early.message_id, v_early.type,
            v_early.version, v_early.key, v_early.payload, v_early.headers, v_early.source,
            v_early.coordinates, v_early.occurred_at, v_early.alone, 'infinity');
    UPDATE {inbox} i SET seq = v_fresh
    WHERE i.consumer = p_consumer AND i.origin = v_early.origin
      AND i.message_id = v_early.message_id;
  END LOOP;
END
$pull$;

-- name: release
-- What waits for these keys may run, up to the next retrying head or parking dead letter. One key
-- after the other: a plan for all would find out where that is for each message of a long tail anew,
-- or read all that is pending. seq + 0: no index that is ordered by it may be read from its beginning.
CREATE FUNCTION {release}(p_consumer text, p_keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $release$
DECLARE
  v_key text;
  v_holder bigint;
BEGIN
  FOREACH v_key IN ARRAY p_keys LOOP
    SELECT least(
      (SELECT min(h.seq + 0) FROM {pending} h
       WHERE h.key = v_key AND h.consumer || '' = p_consumer AND h.available_at < 'infinity'),
      (SELECT min(d.seq + 0) FROM {dead} d
       WHERE d.key = v_key AND d.consumer || '' = p_consumer AND d.parks)) INTO v_holder;
    UPDATE {pending} p SET available_at = NULL
    WHERE p.key = v_key AND p.consumer || '' = p_consumer AND p.available_at = 'infinity'
      AND (v_holder IS NULL OR p.seq < v_holder);
  END LOOP;
END
$release$;

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
