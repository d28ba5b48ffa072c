-- serves: 7

-- name: hold_until
-- What was restored from an archive is not forgotten before this time.
ALTER TABLE {consumer} ADD COLUMN hold_until timestamptz;

-- name: finished
-- Messages that nothing is left to do for, now or in a replay: these may be forgotten.
-- OFFSET 0: every message is looked up. A join, planned while nothing was left to do anywhere, would
-- compare each to all that is pending by then. consumer || '': by its number, and by no other index.
CREATE VIEW {finished} AS
SELECT i.ctid AS place, i.* FROM {inbox} i
WHERE
  NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = i.seq OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = i.seq AND d.consumer || '' = i.consumer OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM {early} e WHERE e.seq = i.seq AND e.consumer || '' = i.consumer OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM {replay_item} r WHERE r.consumer = i.consumer
                  AND r.origin = i.origin AND r.message_id = i.message_id OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.replay > 0 AND p.consumer = i.consumer
                  AND p.origin = i.origin AND p.message_id = i.message_id OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.replay > 0 AND d.consumer = i.consumer
                  AND d.origin = i.origin AND d.message_id = i.message_id OFFSET 0);
