-- name: positions
-- All positions of a source. The last but one column: whether the heartbeat of the owner is overdue.
SELECT partition, next, log_id, owner, owner_name, batch, suspects, until < :now, moved_at
FROM {position} WHERE consumer = :consumer AND source = :source;

-- name: take_over
-- Becomes the owner of a partition. If the old owner did not sign off, the messages it had in flight
-- become suspects. from: the owner that may be replaced; NULL if there is none. any_owner: replace any
-- owner, because the broker assigned the partition to this worker.
INSERT INTO {position} AS p (consumer, source, partition, next, log_id, owner, owner_name, owned_at, batch,
                             until, moved_at)
VALUES (:consumer, :source, :partition, :start, :log_id, :owner, :owner_name, :now, :batch, :until, :now)
ON CONFLICT (consumer, source, partition) DO UPDATE SET
  suspects = CASE WHEN p.owner IS NULL OR p.owner = excluded.owner THEN p.suspects
                  ELSE max(p.suspects, p.batch) END,
  owner = excluded.owner, owner_name = excluded.owner_name, owned_at = excluded.owned_at,
  batch = excluded.batch, until = excluded.until
WHERE :any_owner OR p.owner IS :from
RETURNING next, log_id, suspects;

-- name: advance
-- Moves a position forward. It is the first statement of the unit of work. The position may have been
-- moved already: the COMMIT succeeded, and its reply was lost.
UPDATE {position} SET next = :new, log_id = :log_id, suspects = :suspects, crashes = 0,
  until = :until, moved_at = :now
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next IN (:old, :new)
RETURNING next;

-- name: heartbeat_partitions
-- Records that the owner is alive, and what it measured `age` seconds ago.
UPDATE {position} SET until = :until, lag = :lag, settled = :settled,
  seen_at = :now - CAST(:age * 1000000 AS INTEGER)
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: release_partition
-- Signs off the owner. ended: no more messages come from this partition.
UPDATE {position} SET lag = CASE WHEN :ended THEN NULL ELSE lag END, owner = NULL, owner_name = NULL, owned_at = NULL, until = NULL
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: expect_crash
-- Counts a crash before the next message is converted. If the process survives, it resets the count.
UPDATE {position} SET crashes = crashes + 1
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old
RETURNING crashes;

-- name: undo_expected_crash
-- Resets the count: converting the next message did not crash the process.
UPDATE {position} SET crashes = 0
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old;

-- name: skip
-- Moves a position past messages that the source deleted. Does nothing the second time.
UPDATE {position} SET next = :new, log_id = :log_id, crashes = 0,
  skipped = skipped + :count, skipped_at = :now, skipped_why = :why,
  moved_at = :now
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old
RETURNING next;

-- name: report_outage
-- Records that a worker cannot read its source.
INSERT INTO {outage} (consumer, source, worker, why, since, until)
VALUES (:consumer, :source, :worker, :why, :now, :until)
ON CONFLICT (consumer, source, worker) DO UPDATE SET why = excluded.why, until = excluded.until;

-- name: end_outage
-- Records that a worker reads its source again, or stops. Also deletes the rows of crashed workers.
DELETE FROM {outage}
WHERE consumer = :consumer AND source = :source AND (worker = :worker OR until < :now);
