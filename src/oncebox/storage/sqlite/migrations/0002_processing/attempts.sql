-- name: attempt
-- Every failed run of a handler, and every run of a message that had been stored. An inline success
-- needs no row: received_at of the inbox is also the time when it was done.
CREATE TABLE {attempt} (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer    TEXT NOT NULL,
  origin      TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  replay      INTEGER NOT NULL DEFAULT 0,
  number      INTEGER NOT NULL,
  outcome     TEXT NOT NULL,
  error       TEXT,
  fingerprint TEXT,
  duration    REAL,
  worker      TEXT NOT NULL,
  ended_at    INTEGER NOT NULL
) STRICT;

-- name: attempt_message
-- Finds the attempts of a message.
CREATE INDEX {attempt_message} ON {attempt} (consumer, origin, message_id);

-- name: attempt_own_loop
-- Finds the failures that inbox.failed() recorded. Their messages may never have been claimed.
CREATE INDEX {attempt_own_loop} ON {attempt} (consumer, ended_at) WHERE worker = 'own_loop';
