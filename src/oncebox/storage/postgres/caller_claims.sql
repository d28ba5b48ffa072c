-- name: claim_one
-- Claims one message in the caller's transaction. Returns no row unless it is new: see unclaimed. It
-- refuses a snapshot that may be older than a committed claim.
INSERT INTO {inbox} (consumer, origin, message_id, type, version, key, payload, content_hash, headers,
                     source, coordinates, by_caller)
SELECT :consumer::text, :origin::text, :message_id::text, :type::text, :version::integer, :key::text,
       :payload::bytea, :content_hash::bytea, :headers::text::json, :source::text,
       :coordinates::text, true
WHERE :any_snapshot::boolean OR current_setting('transaction_isolation') = 'read committed'
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING seq;

-- name: claim_dated
-- As claim_one, for a message whose time of production is known: it is also refused if it was produced
-- before the watermark. is_old: it was produced more than an hour ago: see too_late.
INSERT INTO {inbox} (consumer, origin, message_id, type, version, key, payload, content_hash, headers,
                     source, coordinates, produced_at, by_caller)
SELECT m.*, true
FROM (SELECT :consumer::text AS consumer, :origin::text, :message_id::text, :type::text,
             :version::integer, :key::text, :payload::bytea, :content_hash::bytea,
             :headers::text::json, :source::text, :coordinates::text,
             :produced_at::timestamptz AS produced_at) m
WHERE (:any_snapshot::boolean OR current_setting('transaction_isolation') = 'read committed')
  AND NOT EXISTS (SELECT FROM {consumer} c
                  WHERE c.consumer = m.consumer AND c.purged_before > m.produced_at)
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING seq, produced_at < received_at - interval '1 hour' AS is_old;

-- name: claim_many
-- As claim_dated, for many messages. Seqs are drawn in the order given. Rows are inserted in the order
-- of ids, so that two transactions with the same ids wait for each other instead of deadlocking.
WITH arrived AS MATERIALIZED (
  SELECT nextval('{seq}') AS seq, u.*
  FROM unnest(:origins::text[], :ids::text[], :types::text[], :versions::integer[], :keys::text[],
              :payloads::bytea[], :hashes::bytea[], :headers::text[], :sources::text[],
              :coordinates::text[], :occurred::timestamptz[], :produced::timestamptz[])
    AS u (origin, id, type, version, key, payload, hash, headers, source, coordinates, occurred,
          produced)
  WHERE :any_snapshot::boolean OR current_setting('transaction_isolation') = 'read committed'
)
INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload, content_hash,
                     headers, source, coordinates, occurred_at, produced_at, by_caller)
SELECT :consumer::text, a.origin, a.id, a.seq, a.type, a.version, a.key, a.payload, a.hash,
       a.headers::json, a.source, a.coordinates, a.occurred, a.produced, true
FROM arrived a
WHERE NOT EXISTS (SELECT FROM {consumer} c WHERE c.consumer = :consumer::text
                  AND c.purged_before > a.produced)
ORDER BY a.origin COLLATE "C", a.id COLLATE "C"
ON CONFLICT (consumer, origin, message_id) DO NOTHING
RETURNING origin, message_id, seq, coalesce(produced_at < received_at - interval '1 hour', false) AS is_old;

-- name: unclaimed
-- Why messages were not claimed. This is a later statement than the INSERT, because the INSERT may have
-- waited for the transaction that claimed the same id. i: refused, l: produced before the watermark,
-- x: claimed before with another payload, d: duplicate.
SELECT CASE
         WHEN NOT :any_snapshot::boolean
              AND current_setting('transaction_isolation') <> 'read committed' THEN 'i'
         WHEN i.message_id IS NULL
              AND u.produced < (SELECT c.purged_before FROM {consumer} c
                                WHERE c.consumer = :consumer::text) THEN 'l'
         WHEN i.content_hash <> u.hash THEN 'x'
         ELSE 'd'
       END
FROM unnest(:origins::text[], :ids::text[], :hashes::bytea[], :produced::timestamptz[])
  WITH ORDINALITY AS u (origin, id, hash, produced, n)
LEFT JOIN {inbox} i
  ON i.consumer = :consumer::text AND i.origin = u.origin AND i.message_id = u.id
ORDER BY u.n;

-- name: too_late
-- The watermark, if it is newer than a message. A purge may have moved it while the INSERT waited, so a
-- later statement reads it again for old messages.
SELECT c.purged_before FROM {consumer} c
WHERE c.consumer = :consumer::text AND c.purged_before > :produced_at::timestamptz;

-- name: count_duplicates
-- Counts duplicates in the caller's transaction, which may stay open. It updates a counter of this
-- minute that no other transaction has locked, or inserts one. So claims do not wait for each other, and
-- there are only as many rows as transactions at a time. Above READ COMMITTED each transaction has its
-- own row, because updating a row that another transaction changed would be an error.
WITH free AS (
  SELECT m.minute, m.worker FROM {minute_counter} m
  WHERE m.consumer = :consumer::text AND m.minute = date_trunc('minute', statement_timestamp())
    AND m.worker LIKE 'claim:%'
    AND current_setting('transaction_isolation') = 'read committed'
  LIMIT 1 FOR UPDATE SKIP LOCKED
), counted AS (
  UPDATE {minute_counter} m
  SET received = m.received + :count::integer, duplicate = m.duplicate + :count::integer
  FROM free f
  WHERE m.consumer = :consumer::text AND m.minute = f.minute AND m.worker = f.worker
  RETURNING 1
)
INSERT INTO {minute_counter} AS m (consumer, minute, worker, received, duplicate)
SELECT :consumer::text, date_trunc('minute', statement_timestamp()),
       'claim:' || pg_current_xact_id(), :count::integer, :count::integer
WHERE NOT EXISTS (SELECT FROM counted)
ON CONFLICT (consumer, minute, worker) DO UPDATE SET
  received = m.received + excluded.received, duplicate = m.duplicate + excluded.duplicate;
