-- name: positions
-- All positions of a source. The last but one column: whether the heartbeat of the owner is overdue.
SELECT partition, next, log_id, owner, owner_name, batch, suspects, until < clock_timestamp(), moved_at
FROM {position} WHERE consumer = :consumer AND source = :source;

-- name: take_over
-- Becomes the owner of a partition. If the old owner did not sign off, the messages it had in flight
-- become suspects. from: the owner that may be replaced; NULL if there is none. any_owner: replace any
-- owner, because the broker assigned the partition to this worker.
INSERT INTO {position} AS p (consumer, source, partition, next, log_id, owner, owner_name, owned_at, batch,
                             until)
VALUES (:consumer, :source, :partition, :start, :log_id, :owner, :owner_name, clock_timestamp(), :batch,
        clock_timestamp() + make_interval(secs => :heartbeat_timeout))
ON CONFLICT (consumer, source, partition) DO UPDATE SET
  suspects = CASE WHEN p.owner IS NULL OR p.owner = excluded.owner THEN p.suspects
                  ELSE greatest(p.suspects, p.batch) END,
  owner = excluded.owner, owner_name = excluded.owner_name, owned_at = excluded.owned_at,
  batch = excluded.batch, until = excluded.until
WHERE :any_owner::boolean OR p.owner IS NOT DISTINCT FROM :from::text
RETURNING next, log_id, suspects;

-- name: advance
-- Moves a position forward. It is the first statement of the unit of work.
SELECT {advance}(:consumer::text, :source::text, :partition::text, :owner::text, :old::bigint,
                 :new::bigint, :log_id::text, :suspects::integer, :heartbeat_timeout::double precision);

-- name: heartbeat_partitions
-- Records that the owner is alive, and what it measured `age` seconds ago.
UPDATE {position} SET until = clock_timestamp() + make_interval(secs => :heartbeat_timeout),
  lag = :lag::bigint, settled = :settled::bigint,
  seen_at = clock_timestamp() - make_interval(secs => :age)
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: release_partition
-- Signs off the owner. ended: no more messages come from this partition.
UPDATE {position} SET lag = CASE WHEN :ended::boolean THEN NULL ELSE lag END, owner = NULL, owner_name = NULL, owned_at = NULL, until = NULL
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner;

-- name: expect_crash
-- Counts a crash before the next message is converted. If the process survives, it resets the count.
UPDATE {position} SET crashes = crashes + 1
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old::bigint
RETURNING crashes;

-- name: undo_expected_crash
-- Resets the count: converting the next message did not crash the process.
UPDATE {position} SET crashes = 0
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old::bigint;

-- name: skip
-- Moves a position past messages that the source deleted. Does nothing the second time.
UPDATE {position} SET next = :new::bigint, log_id = :log_id::text, crashes = 0,
  skipped = skipped + :count::bigint, skipped_at = clock_timestamp(), skipped_why = :why::text,
  moved_at = clock_timestamp()
WHERE consumer = :consumer AND source = :source AND partition = :partition AND owner = :owner
  AND next = :old::bigint
RETURNING next;

-- name: report_outage
-- Records that a worker cannot read its source.
INSERT INTO {outage} (consumer, source, worker, why, since, until)
VALUES (:consumer, :source, :worker, :why::text, clock_timestamp(),
        clock_timestamp() + make_interval(secs => :heartbeat_timeout))
ON CONFLICT (consumer, source, worker) DO UPDATE SET why = excluded.why, until = excluded.until;

-- name: end_outage
-- Records that a worker reads its source again, or stops. Also deletes the rows of crashed workers.
DELETE FROM {outage}
WHERE consumer = :consumer AND source = :source AND (worker = :worker OR until < clock_timestamp());
