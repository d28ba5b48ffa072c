-- name: minute_counter
-- Counters per worker and minute. Workers that share a row would wait for each other.
CREATE TABLE {minute_counter} (
  consumer    text COLLATE "C" NOT NULL,
  minute      timestamptz NOT NULL,
  worker      text NOT NULL,
  received    bigint NOT NULL DEFAULT 0,
  done        bigint NOT NULL DEFAULT 0,
  duplicate   bigint NOT NULL DEFAULT 0,
  failed      bigint NOT NULL DEFAULT 0,
  blocked     bigint NOT NULL DEFAULT 0,
  stored      bigint NOT NULL DEFAULT 0,
  dead        bigint NOT NULL DEFAULT 0,
  quarantined bigint NOT NULL DEFAULT 0,
  ignored     bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer, minute, worker)
);

-- name: inbox_by_caller
-- Counts the claims of inbox.claim() in a time span, and finds the last one: no counter is written for
-- them. Rows of other claims are not in this index.
CREATE INDEX {inbox_by_caller} ON {inbox} (consumer, received_at) WHERE by_caller;
