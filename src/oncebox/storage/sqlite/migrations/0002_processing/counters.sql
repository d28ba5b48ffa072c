-- name: minute_counter
-- Counters per worker and minute.
CREATE TABLE {minute_counter} (
  consumer    TEXT NOT NULL,
  minute      INTEGER NOT NULL,
  worker      TEXT NOT NULL,
  received    INTEGER NOT NULL DEFAULT 0,
  done        INTEGER NOT NULL DEFAULT 0,
  duplicate   INTEGER NOT NULL DEFAULT 0,
  failed      INTEGER NOT NULL DEFAULT 0,
  blocked     INTEGER NOT NULL DEFAULT 0,
  stored      INTEGER NOT NULL DEFAULT 0,
  dead        INTEGER NOT NULL DEFAULT 0,
  quarantined INTEGER NOT NULL DEFAULT 0,
  ignored     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer, minute, worker)
) STRICT;

-- name: inbox_by_caller
-- Counts the claims of inbox.claim() in a time span, and finds the last one: no counter is written for
-- them. Rows of other claims are not in this index.
CREATE INDEX {inbox_by_caller} ON {inbox} (consumer, received_at) WHERE by_caller;
