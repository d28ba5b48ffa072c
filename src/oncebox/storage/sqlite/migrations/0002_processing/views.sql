-- name: message
-- One row per message with its state, for people and reporting tools. Replays are not included.
CREATE VIEW {message} AS
SELECT i.consumer, i.origin, i.message_id, i.type, i.version, i.key, i.seq, i.source, i.coordinates,
       i.occurred_at, i.received_at, i.payload IS NOT NULL AS has_payload,
       CASE
         WHEN p.seq IS NOT NULL THEN 'pending'
         WHEN d.seq IS NOT NULL THEN d.state
         WHEN e.seq IS NOT NULL THEN 'awaiting_sequence'
         WHEN EXISTS (SELECT 1 FROM {audit} x
                      WHERE x.consumer = i.consumer AND x.origin = i.origin
                        AND x.message_id = i.message_id AND x.action = 'discard' AND x.replay = 0
                        AND x.reason IS NOT 'payload_mismatch')
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
LEFT JOIN {dead_letter} d ON d.consumer = i.consumer AND d.seq = i.seq
LEFT JOIN {awaiting_sequence} e ON e.consumer = i.consumer AND e.seq = i.seq;

-- name: finished
-- Messages that have nothing left to do, now or in a replay: these may be purged.
CREATE VIEW {finished} AS
SELECT i.* FROM {inbox} i
WHERE
  NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.seq = i.seq)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.seq = i.seq AND d.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {awaiting_sequence} e WHERE e.seq = i.seq AND e.consumer = i.consumer)
  AND NOT EXISTS (SELECT 1 FROM {replay_item} r WHERE r.consumer = i.consumer
                  AND r.origin = i.origin AND r.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {pending} p WHERE p.replay > 0 AND p.consumer = i.consumer
                  AND p.origin = i.origin AND p.message_id = i.message_id)
  AND NOT EXISTS (SELECT 1 FROM {dead_letter} d WHERE d.replay > 0 AND d.consumer = i.consumer
                  AND d.origin = i.origin AND d.message_id = i.message_id);
