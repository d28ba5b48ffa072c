-- name: raise_floors
-- Finds for each lane the floor: the seq up to which the lane has no fresh ready row, now and later.
-- Deleted rows stay in the indexes while any transaction has an older snapshot (pg_dump, a report). A
-- search from the beginning visits them all, a search from the floor does not.
-- A floor is safe once every transaction that drew a lower seq has ended. Seqs are drawn by
-- transactions that have an id. So read the last seq that was drawn, then take an id: it is higher
-- than theirs. Once no transaction with a lower id is in progress, all their rows are visible.
-- pg_snapshot_xmax() is not enough: a transaction in progress may have an id above it.
-- The row lock writes to the log, so the COMMIT makes the seq durable, and it is not drawn again
-- after a crash. Another server may lag behind: floors are valid for one start of one server.
-- p_due: the same for the times of retries. If the clock goes back, a retry may be found late.
CREATE FUNCTION {raise_floors}(
  p_consumer text, p_incarnation text, INOUT p_floors bigint[], INOUT p_due timestamptz,
  INOUT p_server timestamptz, INOUT p_drawn bigint, INOUT p_noted_at timestamptz, INOUT p_xid text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $raise_floors$
BEGIN
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'raise_floors() needs a transaction that has not written yet';
  END IF;
  IF p_server IS DISTINCT FROM pg_postmaster_start_time() THEN
    p_floors := NULL;
    p_due := NULL;
    p_xid := NULL;
  ELSIF pg_snapshot_xmin(pg_current_snapshot()) < p_xid::xid8 THEN
    RETURN;
  END IF;

  IF p_xid IS NOT NULL THEN
    SELECT array_agg(least(p_drawn, h.seq - 1) ORDER BY l.lane) INTO p_floors
    FROM generate_series(0, 63) AS l (lane)
    LEFT JOIN LATERAL (
      SELECT p.seq FROM {pending} p
      WHERE p.consumer = p_consumer AND p.lane BETWEEN l.lane AND l.lane
        AND p.available_at IS NULL AND p.seq > coalesce(p_floors[l.lane + 1], 0)
      ORDER BY p.lane, p.seq LIMIT 1
    ) h ON true;
    SELECT least(p_noted_at, min(r.available_at) - interval '1 microsecond') INTO p_due
    FROM {pending} r
    WHERE r.consumer = p_consumer AND r.available_at < 'infinity'
      AND r.available_at > coalesce(p_due, '-infinity');
  END IF;

  p_server := pg_postmaster_start_time();
  p_noted_at := clock_timestamp();
  p_drawn := coalesce(pg_sequence_last_value('{seq}'), 0);
  p_xid := NULL;
  PERFORM FROM {worker} w
  WHERE w.consumer = p_consumer AND w.incarnation = p_incarnation FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    p_xid := pg_current_xact_id()::text;
  END IF;
END
$raise_floors$;
