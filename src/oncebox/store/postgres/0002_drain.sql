-- serves: 1

-- name: lane
-- One row per consumer and lane. Whoever drains a lane holds its row's lock until the commit.
CREATE TABLE {lane} (
  consumer text COLLATE "C" NOT NULL,
  lane     smallint NOT NULL,
  PRIMARY KEY (consumer, lane)
);

-- name: worker
-- Who drains at the moment. A worker that stops cleanly deletes its row.
CREATE TABLE {worker} (
  consumer    text COLLATE "C" NOT NULL,
  name        text COLLATE "C" NOT NULL,
  incarnation text NOT NULL,
  batch       integer NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  beat_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  until       timestamptz NOT NULL,
  PRIMARY KEY (consumer, incarnation)
);

-- name: dead_tell
-- When somebody is to be told of a dead letter; NULL: it is not to be told, or was.
ALTER TABLE {dead} ADD COLUMN tell_at timestamptz;

-- name: dead_untold
-- Finds what is to be told.
CREATE INDEX {dead_untold} ON {dead} (consumer, tell_at) WHERE tell_at IS NOT NULL;

-- name: dead_listed
-- Finds dead letters in the order of their numbers.
CREATE INDEX {dead_listed} ON {dead} (consumer, id);

-- name: pending_risky
-- Finds what has killed its process.
CREATE INDEX {pending_risky} ON {pending} (consumer) WHERE deaths > 0;

-- name: dead_killers
-- Finds what has killed its process for the last time.
CREATE INDEX {dead_killers} ON {dead} (consumer, died_at) WHERE deaths > 0;

-- name: take
-- Locks lanes that have ready messages, and answers these in order, in a later statement than the
-- lock: an earlier snapshot would show what is done by now. A message that failed before or may kill
-- its process is answered by itself, as far as could be seen before the lock: cut() decides.
-- state: t: taken. i: refused, because the transaction's snapshot may be older than the answer.
-- w: something was due and is ready now; commit, so that nobody waits for these rows, and ask again.
-- c: the last one who locked this lane did not finish. The row's xmax keeps that transaction's id:
-- one that aborted is evidence that a message killed its worker. The first messages of the lane are
-- marked to run alone; commit, and ask again.
-- Plans are made when the tables are empty: ORDER BY lane, seq and not seq alone, so that no other
-- index than that of the ready messages will do; ctid = ANY (ARRAY ...), so that no index is searched
-- again, and no join made of it.
CREATE FUNCTION {take}(
  p_consumer text, p_limit integer, p_lanes integer, p_timeout text, p_wake boolean
) RETURNS TABLE (
  state text, xid text, lane smallint, seq bigint, origin text, message_id text, type text,
  version integer, key text, payload bytea, headers text, source text, coordinates text,
  occurred_at timestamptz, attempts integer, alone boolean, deaths integer, replay bigint,
  last_error text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $take$
#variable_conflict use_column
DECLARE
  v_first smallint := floor(random() * 64);
  v_lane smallint := v_first - 1;
  v_next smallint;
  v_around boolean := false;
  v_last text;
  v_now numeric;
  v_special boolean;
  v_left integer := p_limit;
  v_lanes integer := p_lanes;
  v_found integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    state := 'i';
    RETURN NEXT;
    RETURN;
  END IF;
  PERFORM {fence}(p_timeout);

  IF p_wake THEN
    UPDATE {pending} p SET available_at = NULL WHERE p.ctid = ANY (ARRAY(
      SELECT d.ctid FROM {pending} d
      WHERE d.consumer = p_consumer AND d.available_at < 'infinity'
        AND d.available_at <= clock_timestamp()
      ORDER BY d.available_at LIMIT 500 FOR UPDATE SKIP LOCKED));
    IF FOUND THEN
      state := 'w';
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;

  -- The lanes that have work, from a random one on and once around.
  LOOP
    SELECT p.lane, p.attempts > 0 OR p.alone INTO v_next, v_special FROM {pending} p
    WHERE p.consumer = p_consumer AND p.lane > v_lane AND p.available_at IS NULL
    ORDER BY p.lane, p.seq LIMIT 1;
    IF NOT FOUND THEN
      EXIT WHEN v_around;
      v_around := true;
      v_lane := -1;
      CONTINUE;
    END IF;
    v_lane := v_next;
    EXIT WHEN v_around AND v_lane >= v_first;
    CONTINUE WHEN v_special AND v_left < p_limit;
    SELECT nullif(l.xmax::text, '0') INTO v_last FROM {lane} l
    WHERE l.consumer = p_consumer AND l.lane = v_lane FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    xid := pg_current_xact_id()::text;

    -- The row keeps 32 bits of the id: the rest is that of the newest transactions.
    v_now := pg_snapshot_xmax(pg_current_snapshot())::text::numeric;
    v_last := (v_now - mod(v_now - v_last::numeric, 4294967296))::text;
    IF pg_xact_status(v_last::xid8) = 'aborted' THEN
      UPDATE {pending} p SET alone = true
      WHERE p.ctid = ANY (ARRAY(SELECT f.ctid FROM {pending} f
                      WHERE f.consumer = p_consumer AND f.lane BETWEEN v_lane AND v_lane
                        AND f.available_at IS NULL AND NOT f.alone
                      ORDER BY f.lane, f.seq LIMIT p_limit));
      state := 'c';
      RETURN NEXT;
      RETURN;
    END IF;

    RETURN QUERY
      SELECT 't', xid, p.lane, p.seq, p.origin, p.message_id, p.type, p.version, p.key,
             p.payload, p.headers::text, p.source, p.coordinates, p.occurred_at, p.attempts,
             p.alone, p.deaths, p.replay, p.last_error
      FROM {pending} p
      WHERE p.consumer = p_consumer AND p.lane BETWEEN v_lane AND v_lane AND p.available_at IS NULL
      ORDER BY p.lane, p.seq LIMIT CASE WHEN v_special THEN 1 ELSE v_left END;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    v_left := v_left - v_found;
    v_lanes := v_lanes - (v_found > 0)::integer;  -- it may be empty by now
    EXIT WHEN v_special AND v_found > 0 OR v_left <= 0 OR v_lanes <= 0;
  END LOOP;
END
$take$;

-- name: remove
-- Takes messages out, all of them or none: the claim of what was stored. If somebody else was faster
-- the transaction is to be run again.
CREATE FUNCTION {remove}(p_seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off AS $remove$
DECLARE
  v_removed integer;
BEGIN
  DELETE FROM {pending} WHERE seq = ANY (p_seqs) AND available_at IS NULL;
  GET DIAGNOSTICS v_removed = ROW_COUNT;
  IF v_removed <> cardinality(p_seqs) THEN
    RAISE EXCEPTION 'stored messages were taken by somebody else' USING ERRCODE = '40001';
  END IF;
END
$remove$;

-- name: take_alone
-- Takes out the message that runs alone, if the token still is its own. Answers the transaction's
-- id, or nothing where somebody else has overtaken us.
CREATE FUNCTION {take_alone}(p_seq bigint, p_token bigint, p_timeout text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $take_alone$
BEGIN
  PERFORM {fence}(p_timeout);
  DELETE FROM {pending} WHERE seq = p_seq AND isfinite(available_at)
    AND (extract(epoch FROM available_at) * 1000000)::bigint = p_token;
  IF FOUND THEN
    RETURN pg_current_xact_id()::text;
  END IF;
  RETURN NULL;
END
$take_alone$;

-- name: receive
-- Claims a batch and stores what is new, in one round trip. A message waits where its key does.
-- It stores what it answers n, w and r for; the rest of the answers is the caller's to act on.
CREATE FUNCTION {receive}(
  p_consumer text, p_locks bigint[], p_origins text[], p_ids text[], p_types text[],
  p_versions integer[], p_keys text[], p_payloads bytea[], p_hashes bytea[], p_headers text[],
  p_sources text[], p_coordinates text[], p_occurred timestamptz[], p_minted timestamptz[],
  p_timeout text, p_any_snapshot boolean, p_keep_payload boolean, p_lanes smallint[],
  p_alone boolean[],
  OUT answers text, OUT seqs bigint[], OUT xid text
) LANGUAGE plpgsql VOLATILE AS $receive$
BEGIN
  SELECT c.answers, c.seqs, c.xid INTO answers, seqs, xid FROM {claim}(
    p_consumer, p_locks, p_origins, p_ids, p_types, p_versions, p_keys,
    CASE WHEN p_keep_payload THEN p_payloads END, p_hashes, p_headers, p_sources, p_coordinates,
    p_occurred, p_minted, p_timeout, p_any_snapshot) c;
  INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                         headers, source, coordinates, occurred_at, alone, available_at)
  SELECT p_consumer, m.lane, m.seq, m.origin, m.id, m.type, m.version, m.key, m.payload,
         m.headers::json, m.source, m.coordinates, m.occurred, coalesce(m.alone, false),
         CASE WHEN substr(answers, m.n::integer, 1) = 'w' THEN 'infinity'::timestamptz END
  FROM unnest(seqs, p_lanes, p_origins, p_ids, p_types, p_versions, p_keys, p_payloads, p_headers,
              p_sources, p_coordinates, p_occurred, p_alone)
    WITH ORDINALITY AS m (seq, lane, origin, id, type, version, key, payload, headers,
                          source, coordinates, occurred, alone, n)
  WHERE substr(answers, m.n::integer, 1) IN ('n', 'w', 'r');
END
$receive$;
