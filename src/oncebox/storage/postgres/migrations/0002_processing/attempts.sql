-- name: attempt
-- Every failed run of a handler, and every run of a message that had been stored. An inline success
-- needs no row: received_at of the inbox is also the time when it was done.
CREATE TABLE {attempt} (
  id          bigint GENERATED ALWAYS AS IDENTITY,
  consumer    text COLLATE "C" NOT NULL,
  origin      text COLLATE "C" NOT NULL,
  message_id  text COLLATE "C" NOT NULL,
  replay      bigint NOT NULL DEFAULT 0,
  number      integer NOT NULL,
  outcome     text NOT NULL,
  error       text,
  fingerprint text,
  duration    double precision,
  worker      text NOT NULL,
  ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, origin, message_id, id)
);

-- name: attempt_own_loop
-- Finds the failures that inbox.failed() recorded. Their messages may never have been claimed.
CREATE INDEX {attempt_own_loop} ON {attempt} (consumer, ended_at) WHERE worker = 'own_loop';
