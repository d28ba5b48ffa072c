-- name: positions
-- All positions of a source: part, next, mark, owner, whose row should have been renewed by now.
SELECT part, next, mark, owner, owner_name, batch, suspects, until < clock_timestamp(), moved_at
FROM {position} WHERE consumer = :consumer AND source = :source;

-- name: take_over
-- Become the owner of a part. An owner that did not sign off leaves suspects. `from`: who may be
-- replaced; NULL where the broker says that we are the owner now.
INSERT INTO {position} AS p (consumer, source, part, next, mark, owner, owner_name, owned_at, batch,
                             until)
VALUES (:consumer, :source, :part, :start, :mark, :owner, :owner_name, clock_timestamp(), :batch,
        clock_timestamp() + make_interval(secs => :patience))
ON CONFLICT (consumer, source, part) DO UPDATE SET
  suspects = CASE WHEN p.owner IS NULL OR p.owner = excluded.owner THEN p.suspects
                  ELSE greatest(p.suspects, p.batch) END,
  owner = excluded.owner, owner_name = excluded.owner_name, owned_at = excluded.owned_at,
  batch = excluded.batch, until = excluded.until
WHERE :any_owner::boolean OR p.owner IS NOT DISTINCT FROM :from::text
RETURNING next, mark, suspects;

-- name: advance
-- Move a position on, first in the unit of work.
SELECT {advance}(:consumer::text, :source::text, :part::text, :owner::text, :old::bigint,
                 :new::bigint, :mark::text, :suspects::integer, :patience::double precision);

-- name: hold_on
-- An owner is alive, and sees its part so.
UPDATE {position} SET until = clock_timestamp() + make_interval(secs => :patience),
  lag = :lag::bigint, settled = :settled::bigint, seen_at = clock_timestamp()
WHERE consumer = :consumer AND source = :source AND part = :part AND owner = :owner;

-- name: let_go
-- An owner signs off. Of a part that has ended nothing is to come.
UPDATE {position} SET lag = CASE WHEN :ended::boolean THEN NULL ELSE lag END, owner = NULL, owner_name = NULL, owned_at = NULL, until = NULL
WHERE consumer = :consumer AND source = :source AND part = :part AND owner = :owner;
