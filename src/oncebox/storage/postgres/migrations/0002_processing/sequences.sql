-- name: sequence
-- The next sequence number of each key. waiting_since: since when that number is missing while later
-- ones wait. A transaction that reads or writes a row holds the lock of the key.
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

-- name: awaiting_sequence
-- Messages that arrived before earlier numbers of their key, with everything needed to store them
-- later.
-- seq: NULL where the row only occupies the number of a message that is quarantined.
CREATE TABLE {awaiting_sequence} (
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
  isolated    boolean NOT NULL,
  PRIMARY KEY (consumer, key, epoch, number)
);

-- name: awaiting_sequence_seq
-- Finds the row of a message.
CREATE INDEX {awaiting_sequence_seq} ON {awaiting_sequence} (seq);

-- name: sequence_states
-- The next number of each key that has begun, and the lowest numbers that wait. Here and below, LIMIT
-- and ORDER BY make the planner look up each key: a plan for tiny tables would read them completely.
CREATE FUNCTION {sequence_states}(p_consumer text, p_keys text[], p_epochs text[], p_limit integer)
RETURNS TABLE (key text, epoch text, next bigint, early bigint[])
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $sequence_states$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT u.key, u.epoch, s.next,
           ARRAY(SELECT e.number FROM {awaiting_sequence} e
                 WHERE e.consumer = p_consumer AND e.key = u.key AND e.epoch = u.epoch
                 ORDER BY e.number LIMIT p_limit)
    FROM unnest(p_keys, p_epochs) AS u (key, epoch)
    CROSS JOIN LATERAL (
      SELECT c.next FROM {sequence} c
      WHERE c.consumer = p_consumer AND c.key = u.key AND c.epoch = u.epoch LIMIT 1
    ) s;
END
$sequence_states$;

-- name: gaps
-- The missing numbers, the longest wait first. A key may be marked as waiting although no message waits
-- any more, so the waiting messages are checked too.
CREATE FUNCTION {gaps}(
  p_consumer text, p_age double precision, p_key text, p_longest bigint, p_limit integer
) RETURNS TABLE (
  key text, epoch text, next bigint, lowest bigint, early bigint, waiting_since timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $gaps$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT g.key, g.epoch, g.next, g.lowest,
           (SELECT count(*) FROM {awaiting_sequence} e
            WHERE e.consumer = g.consumer AND e.key = g.key AND e.epoch = g.epoch),
           g.waiting_since
    FROM (
      SELECT s.*, (SELECT min(e.number) FROM {awaiting_sequence} e
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

-- name: cut_sequences
-- Keys whose next number has already arrived: more messages were waiting than are stored at once.
CREATE FUNCTION {cut_sequences}(p_consumer text, p_limit integer) RETURNS TABLE (key text, epoch text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $cut_sequences$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT s.key, s.epoch FROM {sequence} s
    WHERE s.consumer = p_consumer AND s.waiting_since IS NOT NULL
      AND s.next = (SELECT min(e.number) FROM {awaiting_sequence} e
                    WHERE e.consumer = s.consumer AND e.key = s.key AND e.epoch = s.epoch)
    ORDER BY s.waiting_since LIMIT p_limit;
END
$cut_sequences$;

-- name: pull
-- Stores messages whose turn has come at the end of their keys, with new seqs in the given order.
-- They are blocked until release() runs. One at a time, so that each is looked up by its key.
CREATE FUNCTION {pull}(p_consumer text, p_keys text[], p_epochs text[], p_numbers bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $pull$
DECLARE
  v record;
  v_early {awaiting_sequence};
  v_fresh bigint;
BEGIN
  FOR v IN
    SELECT u.* FROM unnest(p_keys, p_epochs, p_numbers) WITH ORDINALITY AS u (key, epoch, number, n)
    ORDER BY u.n
  LOOP
    DELETE FROM {awaiting_sequence} e
    WHERE e.consumer = p_consumer AND e.key = v.key AND e.epoch = v.epoch AND e.number = v.number
    RETURNING e.* INTO v_early;
    CONTINUE WHEN v_early.seq IS NULL;
    v_fresh := nextval('{seq}');
    INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                           headers, source, coordinates, occurred_at, isolated, available_at)
    VALUES (p_consumer, v_early.lane, v_fresh, v_early.origin, v_early.message_id, v_early.type,
            v_early.version, v_early.key, v_early.payload, v_early.headers, v_early.source,
            v_early.coordinates, v_early.occurred_at, v_early.isolated, 'infinity');
    UPDATE {inbox} i SET seq = v_fresh
    WHERE i.consumer = p_consumer AND i.origin = v_early.origin
      AND i.message_id = v_early.message_id;
  END LOOP;
END
$pull$;

-- name: release
-- Makes the blocked messages of keys ready, up to the next message to be retried or the next dead
-- letter that blocks the key. One key at a time: one plan for all keys would search that limit again for
-- every message of a long queue, or read all pending messages. seq + 0: an index in the order of seq
-- must not be read from its beginning.
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
      (SELECT min(d.seq + 0) FROM {dead_letter} d
       WHERE d.key = v_key AND d.consumer || '' = p_consumer AND d.blocks_key)) INTO v_holder;
    UPDATE {pending} p SET available_at = NULL, fresh = false
    WHERE p.key = v_key AND p.consumer || '' = p_consumer AND p.available_at = 'infinity'
      AND (v_holder IS NULL OR p.seq < v_holder);
  END LOOP;
END
$release$;
