-- name: dead_letter
-- Dead letters and quarantined deliveries, with everything needed to show them or run them again.
-- blocks_key: the messages of its key wait until it is retried or discarded.
-- sighting: equal for two deliveries of the same quarantined message, so that the second adds no row.
-- notify_at: when to call the on_dead hooks; NULL: there are none, or they were called.
CREATE TABLE {dead_letter} (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer     text COLLATE "C" NOT NULL,
  state        text NOT NULL CHECK (state IN ('dead', 'quarantined')),
  reason       text NOT NULL,
  seq          bigint,
  origin       text COLLATE "C",
  message_id   text COLLATE "C",
  type         text,
  version      integer,
  key          text COLLATE "C",
  blocks_key   boolean NOT NULL DEFAULT false,
  payload      bytea NOT NULL,
  content_hash bytea,
  headers      json,
  source       text,
  coordinates  text,
  occurred_at  timestamptz,
  attempts     integer NOT NULL DEFAULT 0,
  crashes      integer NOT NULL DEFAULT 0,
  replay       bigint NOT NULL DEFAULT 0,
  error        text,
  fingerprint  text,
  sighting     bytea,
  dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  notify_at    timestamptz
);

-- name: dead_letter_sighting
-- A delivery is quarantined once.
CREATE UNIQUE INDEX {dead_letter_sighting} ON {dead_letter} (consumer, sighting);

-- name: dead_letter_blocks_key
-- Finds the dead letters that block a key.
CREATE INDEX {dead_letter_blocks_key} ON {dead_letter} (key, consumer, seq) WHERE blocks_key;

-- name: dead_letter_unnotified
-- Finds the dead letters whose hooks are still to be called.
CREATE INDEX {dead_letter_unnotified} ON {dead_letter} (consumer, notify_at)
  WHERE notify_at IS NOT NULL;

-- name: dead_letter_listed
-- Lists dead letters in the order of their ids.
CREATE INDEX {dead_letter_listed} ON {dead_letter} (consumer, id);

-- name: dead_letter_crashed
-- Finds the dead letters that crashed their process, by time.
CREATE INDEX {dead_letter_crashed} ON {dead_letter} (consumer, dead_at) WHERE crashes > 0;

-- name: dead_letter_seq
-- Finds the dead letter of a message.
CREATE INDEX {dead_letter_seq} ON {dead_letter} (seq);

-- name: audit
-- Actions of operators: one row per message, written in the transaction of the action.
CREATE TABLE {audit} (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer   text COLLATE "C" NOT NULL,
  action        text NOT NULL,
  by_whom    text NOT NULL,
  why        text NOT NULL,
  dead_id    bigint,
  origin     text COLLATE "C",
  message_id text COLLATE "C",
  reason     text,
  replay     bigint NOT NULL DEFAULT 0,
  acted_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: audit_message
-- Finds the actions on a message.
CREATE INDEX {audit_message} ON {audit} (consumer, origin, message_id);
