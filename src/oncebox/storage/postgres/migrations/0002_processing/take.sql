-- name: take
-- Locks lanes that have ready messages, and returns these messages in order. A later statement than the
-- lock reads them: the snapshot of the lock could still show messages that are done by now. A message
-- that failed before, or that runs isolated, is returned by itself, as far as that is known before the
-- lock: the caller cuts the batch again.
-- state: t: taken. i: refused, because the snapshot may be older than the lock.
-- w: retries were due and are ready now; commit, so that no other transaction waits for these rows, and
-- call again.
-- c: the last worker that locked this lane did not commit. xmax of the row keeps the id of that
-- transaction; if it was aborted, a message may have crashed the worker. The first messages of the lane
-- are marked as isolated; commit, and call again.
-- s: the last row; the search visited many more index entries than it returned, those of deleted rows.
-- p_floors, p_due, p_server: what raise_floors returned, or NULL. Up to its floor a lane has no fresh
-- ready rows, so only the others are searched there.
-- Plans are made while the tables are empty. ORDER BY lane, seq and not seq alone: only the index of
-- ready messages fits. ctid = ANY (ARRAY ...): no second index search, and no join. (SELECT p_due): the
-- plan does not depend on the value, so it is not made again for every call.
CREATE FUNCTION {take}(
  p_consumer text, p_limit integer, p_lanes integer, p_timeout text, p_wake boolean,
  p_floors bigint[] DEFAULT NULL, p_due timestamptz DEFAULT NULL, p_server timestamptz DEFAULT NULL
) RETURNS TABLE (
  state text, xid text, lane smallint, seq bigint, origin text, message_id text, type text,
  version integer, key text, payload bytea, headers text, source text, coordinates text,
  occurred_at timestamptz, attempts integer, isolated boolean, crashes integer, replay bigint,
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
  v_wanted integer;
  v_found integer;
  v_ready oid := to_regclass('{pending_ready}');
  v_retrying oid := to_regclass('{pending_retrying}');
  v_visited bigint := pg_stat_get_xact_tuples_returned(v_ready)
                    + pg_stat_get_xact_tuples_returned(v_retrying);
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    state := 'i';
    RETURN NEXT;
    RETURN;
  END IF;
  PERFORM {fence}(p_timeout);
  IF p_server IS DISTINCT FROM pg_postmaster_start_time() THEN
    p_floors := NULL;  -- floors of another server, which may have drawn higher seqs
    p_due := NULL;
  END IF;

  IF p_wake THEN
    UPDATE {pending} p SET available_at = NULL, fresh = false WHERE p.ctid = ANY (ARRAY(
      SELECT d.ctid FROM {pending} d
      WHERE d.consumer = p_consumer AND d.available_at < 'infinity'
        AND d.available_at > (SELECT coalesce(p_due, '-infinity'))
        AND d.available_at <= clock_timestamp()
      ORDER BY d.available_at LIMIT 500 FOR UPDATE SKIP LOCKED));
    IF FOUND THEN
      state := 'w';
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;

  -- Visit the lanes that have ready messages: start at a random lane, and go round once.
  LOOP
    IF p_floors IS NULL THEN
      SELECT p.lane, p.attempts > 0 OR p.isolated INTO v_next, v_special FROM {pending} p
      WHERE p.consumer = p_consumer AND p.lane > v_lane AND p.available_at IS NULL
      ORDER BY p.lane, p.seq LIMIT 1;
    ELSE
      SELECT l.lane, h.special INTO v_next, v_special
      FROM generate_series(v_lane + 1, 63) AS l (lane)
      CROSS JOIN LATERAL (
        (SELECT p.seq, p.attempts > 0 OR p.isolated AS special FROM {pending} p
         WHERE p.consumer = p_consumer AND p.lane BETWEEN l.lane AND l.lane
           AND p.available_at IS NULL AND p.seq > p_floors[l.lane + 1]
         ORDER BY p.lane, p.seq LIMIT 1)
        UNION ALL
        (SELECT p.seq, p.attempts > 0 OR p.isolated FROM {pending} p
         WHERE p.consumer = p_consumer AND p.lane BETWEEN l.lane AND l.lane
           AND p.available_at IS NULL AND NOT p.fresh AND p.seq + 0 <= p_floors[l.lane + 1]
         ORDER BY p.lane, p.seq + 0 LIMIT 1)
        ORDER BY seq LIMIT 1
      ) h
      LIMIT 1;
    END IF;
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

    -- The row keeps 32 bits of the id. The upper bits are those of the newest transactions.
    v_now := pg_snapshot_xmax(pg_current_snapshot())::text::numeric;
    v_last := (v_now - mod(v_now - v_last::numeric, 4294967296))::text;
    IF pg_xact_status(v_last::xid8) = 'aborted' THEN
      UPDATE {pending} p SET isolated = true
      WHERE p.ctid = ANY (ARRAY(SELECT f.ctid FROM {pending} f
                      WHERE f.consumer = p_consumer AND f.lane BETWEEN v_lane AND v_lane
                        AND f.available_at IS NULL AND NOT f.isolated
                      ORDER BY f.lane, f.seq LIMIT p_limit));
      state := 'c';
      RETURN NEXT;
      RETURN;
    END IF;

    v_wanted := CASE WHEN v_special THEN 1 ELSE v_left END;
    IF p_floors IS NULL THEN
      RETURN QUERY
        SELECT 't', xid, p.lane, p.seq, p.origin, p.message_id, p.type, p.version, p.key,
               p.payload, p.headers::text, p.source, p.coordinates, p.occurred_at, p.attempts,
               p.isolated, p.crashes, p.replay, p.last_error
        FROM {pending} p
        WHERE p.consumer = p_consumer AND p.lane BETWEEN v_lane AND v_lane
          AND p.available_at IS NULL
        ORDER BY p.lane, p.seq LIMIT v_wanted;
    ELSE
      RETURN QUERY
        SELECT 't', xid, p.lane, p.seq, p.origin, p.message_id, p.type, p.version, p.key,
               p.payload, p.headers::text, p.source, p.coordinates, p.occurred_at, p.attempts,
               p.isolated, p.crashes, p.replay, p.last_error
        FROM (
          (SELECT a.* FROM {pending} a
           WHERE a.consumer = p_consumer AND a.lane BETWEEN v_lane AND v_lane
             AND a.available_at IS NULL AND a.seq > p_floors[v_lane + 1]
           ORDER BY a.lane, a.seq LIMIT v_wanted)
          UNION ALL
          (SELECT b.* FROM {pending} b
           WHERE b.consumer = p_consumer AND b.lane BETWEEN v_lane AND v_lane
             AND b.available_at IS NULL AND NOT b.fresh AND b.seq + 0 <= p_floors[v_lane + 1]
           ORDER BY b.lane, b.seq + 0 LIMIT v_wanted)
        ) p
        ORDER BY p.lane, p.seq LIMIT v_wanted;
    END IF;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    v_left := v_left - v_found;
    v_lanes := v_lanes - (v_found > 0)::integer;  -- the lane may be empty by now
    EXIT WHEN v_special AND v_found > 0 OR v_left <= 0 OR v_lanes <= 0;
  END LOOP;

  IF pg_stat_get_xact_tuples_returned(v_ready) + pg_stat_get_xact_tuples_returned(v_retrying)
     - v_visited > 1000 + 2 * p_limit THEN
    state := 's';
    RETURN NEXT;
  END IF;
END
$take$;
