-- serves: 7

-- name: hold_until
-- What was restored from an archive is not forgotten before this time.
ALTER TABLE {consumer} ADD COLUMN hold_until INTEGER;

-- name: finished
-- Messages that nothing is left to do for, now or in a replay: these may be forgotten.
CREATE VIEW {finished} AS
SELECT i.* FROM {inbox} i
WHERE
  NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = i.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {early} e WHERE e.seq = i.seq AND e.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {replay_item} r WHERE r.consumer = i.consumer
                  AND r.origin = i.origin AND r.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.replay > 0 AND p.consumer = i.consumer
                  AND p.origin = i.origin AND p.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.replay > 0 AND d.consumer = i.consumer
                  AND d.origin = i.origin AND d.message_id = i.message_id);
