-- name: positions
-- All positions of a source: part, next, mark, owner, whose row should have been renewed by now.
SELECT part, next, mark, owner, owner_name, batch, suspects, until < :now, moved_at
FROM {position} WHERE consumer = :consumer AND source = :source;

-- name: take_over
-- Become the owner of a part. An owner that did not sign off leaves suspects. `from`: who may be
-- replaced; NULL where the broker says that we are the owner now.
INSERT INTO {position} AS p (consumer, source, part, next, mark, owner, owner_name, owned_at, batch,
                             until, moved_at)
VALUES (:consumer, :source, :part, :start, :mark, :owner, :owner_name, :now, :batch, :until, :now)
ON CONFLICT (consumer, source, part) DO UPDATE SET
  suspects = CASE WHEN p.owner IS NULL OR p.owner = excluded.owner THEN p.suspects
                  ELSE max(p.suspects, p.batch) END,
  owner = excluded.owner, owner_name = excluded.owner_name, owned_at = excluded.owned_at,
  batch = excluded.batch, until = excluded.until
WHERE :any_owner OR p.owner IS :from
RETURNING next, mark, suspects;

-- name: advance
-- Move a position on, first in the unit of work. It may be there already: the answer to our COMMIT
-- got lost.
UPDATE {position} SET next = :new, mark = :mark, suspects = :suspects, until = :until,
  moved_at = :now
WHERE consumer = :consumer AND source = :source AND part = :part AND owner = :owner
  AND next IN (:old, :new)
RETURNING next;

-- name: hold_on
-- An owner is alive, and sees its part so.
UPDATE {position} SET until = :until, lag = :lag, settled = :settled, seen_at = :now
WHERE consumer = :consumer AND source = :source AND part = :part AND owner = :owner;

-- name: let_go
-- An owner signs off. Of a part that has ended nothing is to come.
UPDATE {position} SET lag = CASE WHEN :ended THEN NULL ELSE lag END, owner = NULL, owner_name = NULL, owned_at = NULL, until = NULL
WHERE consumer = :consumer AND source = :source AND part = :part AND owner = :owner;
