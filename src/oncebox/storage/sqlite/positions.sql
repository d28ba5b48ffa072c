-- name: positions
-- All positions of a source: part, next, mark, owner, whose row should have been renewed by now.
SELECT partition, next, log_id, owner, owner_name, batch, suspects, until < :now, moved_at
FROM {position} WHERE consumer = :consumer AND source = :source;

-- name: take_over
-- Become the owner of a part. An owner that did not sign off leaves suspects. `from`: who may be
-- replaced; NULL where the broker says that we are the owner now.
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
-- Move a position on, first in the unit of work. It may be there already: the answer to our COMMIT
-- got lost.
UPDATE {position} SET next = :new, log_id = :log_id, suspects = :suspects, crashes = 0,
  until = :until, moved_at = :now
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next IN (:old, :new)
RETURNING next;

-- name: heartbeat_partitions
-- An owner is alive, and measured its part so, some seconds ago.
UPDATE {position} SET until = :until, lag = :lag, settled = :settled,
  seen_at = :now - CAST(:age * 1000000 AS INTEGER)
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: release_partition
-- An owner signs off. Of a part that has ended nothing is to come.
UPDATE {position} SET lag = CASE WHEN :ended THEN NULL ELSE lag END, owner = NULL, owner_name = NULL, owned_at = NULL, until = NULL
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: expect_crash
-- Count a crash before the next message is converted: if the process survives, it takes it back.
UPDATE {position} SET crashes = crashes + 1
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old
RETURNING crashes;

-- name: undo_expected_crash
-- Converting the next message did not crash the process.
UPDATE {position} SET crashes = 0
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old;

-- name: skip
-- Move a position over messages that are gone. Not twice: the second time it is there already.
UPDATE {position} SET next = :new, log_id = :log_id, crashes = 0,
  skipped = skipped + :count, skipped_at = :now, skipped_why = :why,
  moved_at = :now
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old
RETURNING next;

-- name: report_outage
-- A worker cannot read its source.
INSERT INTO {outage} (consumer, source, worker, why, since, until)
VALUES (:consumer, :source, :worker, :why, :now, :until)
ON CONFLICT (consumer, source, worker) DO UPDATE SET why = excluded.why, until = excluded.until;

-- name: end_outage
-- A worker reads its source again, or stops. Rows of workers that died are removed as well.
DELETE FROM {outage}
WHERE consumer = :consumer AND source = :source AND (worker = :worker OR until < :now);
