-- name: claim
-- Claims a batch in one round trip. Every statement of a VOLATILE function has its own snapshot. So
-- the later statements see what the INSERT may have waited for: another payload, a blocked key, a
-- watermark that moved. A plan that was made while the tables were empty must not scan full ones:
-- enable_seqscan = off.
-- answers: one letter per message. n: new. w: new, its key is blocked. r: new, its key has messages
-- that are ready. d: duplicate. x: duplicate with another payload. l: new, but produced before the
-- watermark. A single i: refused, because the snapshot may be older than a committed claim.
CREATE FUNCTION {claim}(
  p_consumer text, p_locks bigint[], p_origins text[], p_ids text[], p_types text[],
  p_versions integer[], p_keys text[], p_payloads bytea[], p_hashes bytea[], p_headers text[],
  p_sources text[], p_coordinates text[], p_occurred timestamptz[], p_produced timestamptz[],
  p_timeout text, p_any_snapshot boolean,
  OUT answers text, OUT seqs bigint[], OUT xid text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $claim$
DECLARE
  waiting text[];
  unfinished text[];
  v_watermark timestamptz;
BEGIN
  IF cardinality(p_ids) = 1 THEN
    SELECT c.answer, ARRAY[c.seq], c.xid INTO answers, seqs, xid FROM {claim_single}(
      p_consumer, p_locks[1], p_origins[1], p_ids[1], p_types[1], p_versions[1], p_keys[1],
      p_payloads[1], p_hashes[1], p_headers[1], p_sources[1], p_coordinates[1], p_occurred[1],
      p_produced[1], p_timeout, p_any_snapshot) c;
    RETURN;
  END IF;

  -- Above READ COMMITTED the snapshot is older than the locks: it does not show what their last
  -- holder left unfinished, and a message could overtake another.
  IF current_setting('transaction_isolation') <> 'read committed'
     AND (cardinality(p_locks) > 0 OR NOT p_any_snapshot) THEN
    answers := 'i';
    RETURN;
  END IF;

  PERFORM {fence}(p_timeout);

  -- The locks are sorted, and taken before a seq is drawn. So is the transaction's id, from which
  -- raise_floors knows which transactions may still insert a row with a lower seq.
  PERFORM pg_advisory_xact_lock(l) FROM unnest(p_locks) AS l;
  xid := pg_current_xact_id()::text;

  -- Seqs are drawn in the order of arrival. Rows are inserted in the order of ids, so that two
  -- batches with the same ids wait for each other instead of deadlocking.
  WITH arrived AS MATERIALIZED (
    SELECT nextval('{seq}') AS seq, a.*
    FROM unnest(p_origins, p_ids, p_types, p_versions, p_keys, p_payloads, p_hashes, p_headers,
                p_sources, p_coordinates, p_occurred, p_produced)
      WITH ORDINALITY AS a (origin, id, type, version, key, payload, hash, headers,
                            source, coordinates, occurred, produced, n)
  ), inserted AS (
    INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload,
                         content_hash, headers, source, coordinates, occurred_at, produced_at)
    SELECT p_consumer, origin, id, seq, type, version, key, payload,
           hash, headers::json, source, coordinates, occurred, produced
    FROM arrived
    ORDER BY origin COLLATE "C", id COLLATE "C", n
    ON CONFLICT (consumer, origin, message_id) DO NOTHING
    RETURNING {inbox}.seq
  )
  SELECT array_agg(i.seq ORDER BY a.n) INTO seqs
  FROM arrived a LEFT JOIN inserted i ON i.seq = a.seq;

  -- If any message of a key waits, its newest message does: one row per key is enough. The order by
  -- key, and consumer || '', make the planner use the indexes that begin with the key. Other indexes
  -- look as good on tables that were tiny when they were analyzed, and would be read completely.
  IF cardinality(p_locks) > 0 THEN
    SELECT array_agg(s.key) FILTER (WHERE s.waits), array_agg(s.key) INTO waiting, unfinished
    FROM (
      SELECT k.key, n.waits IS TRUE OR d.blocks_key IS TRUE AS waits
      FROM (SELECT DISTINCT u.key FROM unnest(p_keys) AS u (key) WHERE u.key IS NOT NULL) k
      LEFT JOIN LATERAL (
        SELECT p.available_at IS NOT NULL AS waits FROM {pending} p
        WHERE p.key BETWEEN k.key AND k.key AND p.consumer = p_consumer
        ORDER BY p.key DESC, p.consumer DESC, p.seq DESC LIMIT 1
      ) n ON true
      LEFT JOIN LATERAL (
        SELECT true AS blocks_key FROM {dead_letter} d
        WHERE d.key = k.key AND d.consumer || '' = p_consumer AND d.blocks_key LIMIT 1
      ) d ON true
      WHERE n.waits IS NOT NULL OR d.blocks_key
    ) s;
  END IF;

  SELECT c.purged_before INTO v_watermark FROM {consumer} c WHERE c.consumer = p_consumer;

  SELECT string_agg(
    CASE
      WHEN m.seq IS NULL THEN
        CASE WHEN (SELECT i.content_hash <> m.hash FROM {inbox} i
                   WHERE i.consumer = p_consumer AND i.origin = m.origin AND i.message_id = m.id)
             THEN 'x' ELSE 'd' END
      WHEN m.produced < v_watermark THEN 'l'
      WHEN m.key = ANY (waiting) THEN 'w'
      WHEN m.key = ANY (unfinished) THEN 'r'
      ELSE 'n'
    END, '' ORDER BY m.n) INTO answers
  FROM unnest(seqs, p_origins, p_ids, p_keys, p_hashes, p_produced)
    WITH ORDINALITY AS m (seq, origin, id, key, hash, produced, n);
END
$claim$;

-- name: claim_single
-- Claims one message; the answers are those of claim. It needs none of the joins of a batch, which
-- take ten times as long. A plan that was made while the tables were empty must not scan full ones:
-- enable_seqscan = off.
CREATE FUNCTION {claim_single}(
  p_consumer text, p_lock bigint, p_origin text, p_id text, p_type text, p_version integer,
  p_key text, p_payload bytea, p_hash bytea, p_headers text, p_source text, p_coordinates text,
  p_occurred timestamptz, p_produced timestamptz, p_timeout text, p_any_snapshot boolean,
  OUT answer text, OUT seq bigint, OUT xid text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $claim$
DECLARE
  v_watermark timestamptz;
  v_waits boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed'
     AND (p_lock IS NOT NULL OR NOT p_any_snapshot) THEN
    answer := 'i';
    RETURN;
  END IF;

  PERFORM {fence}(p_timeout);
  IF p_lock IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(p_lock);
  END IF;
  xid := pg_current_xact_id()::text;

  INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload,
                       content_hash, headers, source, coordinates, occurred_at, produced_at)
  VALUES (p_consumer, p_origin, p_id, nextval('{seq}'), p_type, p_version, p_key, p_payload,
          p_hash, p_headers::json, p_source, p_coordinates, p_occurred, p_produced)
  ON CONFLICT (consumer, origin, message_id) DO NOTHING
  RETURNING {inbox}.seq INTO seq;
  IF seq IS NULL THEN
    answer := CASE WHEN (SELECT i.content_hash <> p_hash FROM {inbox} i
                         WHERE i.consumer = p_consumer AND i.origin = p_origin
                           AND i.message_id = p_id)
                   THEN 'x' ELSE 'd' END;
    RETURN;
  END IF;

  IF p_lock IS NOT NULL THEN
    SELECT p.available_at IS NOT NULL INTO v_waits FROM {pending} p
    WHERE p.key BETWEEN p_key AND p_key AND p.consumer = p_consumer
    ORDER BY p.key DESC, p.consumer DESC, p.seq DESC LIMIT 1;
    v_waits := CASE WHEN EXISTS (SELECT 1 FROM {dead_letter} d
                                 WHERE d.key = p_key AND d.consumer || '' = p_consumer
                                   AND d.blocks_key)
                    THEN true ELSE v_waits END;
  END IF;
  SELECT c.purged_before INTO v_watermark FROM {consumer} c WHERE c.consumer = p_consumer;
  answer := CASE WHEN p_produced < v_watermark THEN 'l'
                 WHEN v_waits THEN 'w'
                 WHEN NOT v_waits THEN 'r'
                 ELSE 'n' END;
END
$claim$;

-- name: receive
-- Claims a batch and stores its new messages, in one round trip: those with the answers n, w and r.
-- A message waits if its key is blocked. The caller handles the other answers.
CREATE FUNCTION {receive}(
  p_consumer text, p_locks bigint[], p_origins text[], p_ids text[], p_types text[],
  p_versions integer[], p_keys text[], p_payloads bytea[], p_hashes bytea[], p_headers text[],
  p_sources text[], p_coordinates text[], p_occurred timestamptz[], p_produced timestamptz[],
  p_timeout text, p_any_snapshot boolean, p_keep_payload boolean, p_lanes smallint[],
  p_isolated boolean[],
  OUT answers text, OUT seqs bigint[], OUT xid text
) LANGUAGE plpgsql VOLATILE AS $receive$
BEGIN
  SELECT c.answers, c.seqs, c.xid INTO answers, seqs, xid FROM {claim}(
    p_consumer, p_locks, p_origins, p_ids, p_types, p_versions, p_keys,
    CASE WHEN p_keep_payload THEN p_payloads END, p_hashes, p_headers, p_sources, p_coordinates,
    p_occurred, p_produced, p_timeout, p_any_snapshot) c;
  INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                         headers, source, coordinates, occurred_at, isolated, fresh, available_at)
  SELECT p_consumer, m.lane, m.seq, m.origin, m.id, m.type, m.version, m.key, m.payload,
         m.headers::json, m.source, m.coordinates, m.occurred, coalesce(m.isolated, false), true,
         CASE WHEN substr(answers, m.n::integer, 1) = 'w' THEN 'infinity'::timestamptz END
  FROM unnest(seqs, p_lanes, p_origins, p_ids, p_types, p_versions, p_keys, p_payloads, p_headers,
              p_sources, p_coordinates, p_occurred, p_isolated)
    WITH ORDINALITY AS m (seq, lane, origin, id, type, version, key, payload, headers,
                          source, coordinates, occurred, isolated, n)
  WHERE substr(answers, m.n::integer, 1) IN ('n', 'w', 'r');
END
$receive$;
