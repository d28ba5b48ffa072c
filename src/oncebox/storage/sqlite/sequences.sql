-- name: sequence_states
-- The next sequence number of a key.
SELECT next FROM {sequence} WHERE consumer = :consumer AND key = :key AND epoch = :epoch;

-- name: awaiting_numbers
-- The lowest sequence numbers that wait.
SELECT number FROM {awaiting_sequence} WHERE consumer = :consumer AND key = :key AND epoch = :epoch
ORDER BY number LIMIT :limit;

-- name: store_awaiting
-- Stores a message until its sequence number is due, unless another message has the same number.
INSERT INTO {awaiting_sequence} (consumer, key, epoch, number, seq, lane, origin, message_id, type, version,
                     payload, headers, source, coordinates, occurred_at, isolated)
VALUES (:consumer, :key, :epoch, :number, :seq, :lane, :origin, :message_id, :type, :version,
        :payload, :headers, :source, :coordinates, :occurred_at, :isolated)
ON CONFLICT (consumer, key, epoch, number) DO NOTHING
RETURNING key, epoch, number;

-- name: pull_awaiting
-- Stores a message whose turn has come at the end of its key. It is blocked until release runs.
INSERT INTO {pending} (consumer, lane, seq, origin, message_id, type, version, key, payload,
                       headers, source, coordinates, occurred_at, isolated, available_at)
SELECT consumer, lane, :fresh, origin, message_id, type, version, key, payload,
       headers, source, coordinates, occurred_at, isolated, 9223372036854775807
FROM {awaiting_sequence} WHERE consumer = :consumer AND key = :key AND epoch = :epoch AND number = :number
  AND seq IS NOT NULL;

-- name: renumber
-- Gives the message a new seq.
UPDATE {inbox} SET seq = :fresh WHERE seq = (
  SELECT seq FROM {awaiting_sequence}
  WHERE consumer = :consumer AND key = :key AND epoch = :epoch AND number = :number
);

-- name: drop_awaiting
-- Deletes the message from those that wait.
DELETE FROM {awaiting_sequence}
WHERE consumer = :consumer AND key = :key AND epoch = :epoch AND number = :number;

-- name: advance_sequences
-- Records the next number of a sequence, and since when it is missing. The time starts again with every
-- step, and is NULL if no message waits.
INSERT INTO {sequence} AS s (consumer, key, epoch, next, waiting_since)
VALUES (:consumer, :key, :epoch, :next, CASE WHEN :waits THEN :now END)
ON CONFLICT (consumer, key, epoch) DO UPDATE SET next = excluded.next,
  waiting_since = CASE
    WHEN excluded.waiting_since IS NOT NULL AND s.next IS excluded.next
    THEN coalesce(s.waiting_since, excluded.waiting_since) ELSE excluded.waiting_since END;

-- name: gaps
-- Missing sequence numbers, the longest wait first. A sequence may be marked as waiting although no
-- message waits any more, so the waiting messages are checked too.
SELECT g.key, g.epoch, g.next, g.lowest,
       (SELECT count(*) FROM {awaiting_sequence} e
        WHERE e.consumer = g.consumer AND e.key = g.key AND e.epoch = g.epoch),
       g.waiting_since
FROM (
  SELECT s.*, (SELECT min(e.number) FROM {awaiting_sequence} e
               WHERE e.consumer = s.consumer AND e.key = s.key AND e.epoch = s.epoch) AS lowest
  FROM {sequence} s
  WHERE s.consumer = :consumer AND s.waiting_since IS NOT NULL
    AND s.waiting_since <= :before
    AND (:key IS NULL OR s.key = :key)
) g
WHERE g.lowest IS NOT NULL
  AND (:longest IS NULL OR g.next IS NULL OR g.lowest - g.next <= :longest)
ORDER BY g.waiting_since LIMIT :limit;

-- name: cut_sequences
-- Sequences whose next number has arrived, but too many messages waited to store all at once.
SELECT s.key, s.epoch FROM {sequence} s
WHERE s.consumer = :consumer AND s.waiting_since IS NOT NULL
  AND EXISTS (SELECT 1 FROM {awaiting_sequence} e WHERE e.consumer = s.consumer AND e.key = s.key
              AND e.epoch = s.epoch AND e.number = s.next)
LIMIT :limit;

-- name: is_gap
-- Whether a number is still missing since a time.
SELECT 1 FROM {sequence} s
WHERE s.consumer = :consumer AND s.key = :key AND s.epoch = :epoch AND s.next IS :next
  AND s.waiting_since <= :before;
