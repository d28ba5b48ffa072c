-- name: pending
-- Messages that still have to run, with everything that a run needs. A row is deleted when its message
-- is done.
-- available_at: NULL = ready; a time = the first message of its key, to be retried then;
-- infinity = blocked behind the first message or a dead letter of its key.
-- isolated: runs by itself, because it may crash its process. crashes: how often it did in a row.
-- fresh: the transaction that inserted the row also drew its seq, and if the row is ready it always
-- was. Every statement that makes a row ready again sets this to false: see raise_floors.
CREATE TABLE {pending} (
  seq          bigint PRIMARY KEY,
  consumer     text COLLATE "C" NOT NULL,
  lane         smallint NOT NULL,
  origin       text COLLATE "C" NOT NULL,
  message_id   text COLLATE "C" NOT NULL,
  type         text NOT NULL,
  version      integer NOT NULL,
  key          text COLLATE "C",
  payload      bytea NOT NULL,
  headers      json,
  source       text,
  coordinates  text,
  occurred_at  timestamptz,
  attempts     integer NOT NULL DEFAULT 0,
  isolated     boolean NOT NULL DEFAULT false,
  fresh        boolean NOT NULL DEFAULT false,
  crashes      integer NOT NULL DEFAULT 0,
  replay       bigint NOT NULL DEFAULT 0,
  available_at timestamptz,
  last_error   text
);

-- name: pending_ready
-- Finds the ready rows of a lane, however many other rows wait. Only this index begins with the lane.
CREATE INDEX {pending_ready} ON {pending} (consumer, lane, seq) WHERE available_at IS NULL;

-- name: pending_again
-- Finds the ready rows of a lane that are not fresh. With seq + 0 no plan uses pending_ready instead.
CREATE INDEX {pending_again} ON {pending} (consumer, lane, (seq + 0))
  WHERE available_at IS NULL AND NOT fresh;

-- name: pending_retrying
-- Finds the messages whose retry is due.
CREATE INDEX {pending_retrying} ON {pending} (consumer, available_at) WHERE available_at < 'infinity';

-- name: pending_key
-- Finds the messages of a key.
CREATE INDEX {pending_key} ON {pending} (key, consumer, seq);

-- name: lane
-- One row per consumer and lane. A worker locks the row of a lane until it commits.
CREATE TABLE {lane} (
  consumer text COLLATE "C" NOT NULL,
  lane     smallint NOT NULL,
  PRIMARY KEY (consumer, lane)
);

-- name: remove
-- Deletes messages that are about to run: all of them or none. If another worker was faster, it fails
-- with a serialization error, and the transaction runs again.
CREATE FUNCTION {remove}(p_seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off AS $remove$
DECLARE
  v_removed integer;
BEGIN
  DELETE FROM {pending} WHERE seq = ANY (p_seqs) AND available_at IS NULL;
  GET DIAGNOSTICS v_removed = ROW_COUNT;
  IF v_removed <> cardinality(p_seqs) THEN
    RAISE EXCEPTION 'another worker took stored messages first' USING ERRCODE = '40001';
  END IF;
END
$remove$;

-- name: take_isolated
-- Deletes the message that is about to run isolated, if the token is still its own. Returns the
-- transaction's id, or NULL if another worker took the message first.
CREATE FUNCTION {take_isolated}(p_seq bigint, p_token bigint, p_timeout text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $take_isolated$
BEGIN
  PERFORM {fence}(p_timeout);
  DELETE FROM {pending} WHERE seq = p_seq AND isfinite(available_at)
    AND (extract(epoch FROM available_at) * 1000000)::bigint = p_token;
  IF FOUND THEN
    RETURN pg_current_xact_id()::text;
  END IF;
  RETURN NULL;
END
$take_isolated$;

-- name: pending_crashing
-- Finds the messages that crashed their process.
CREATE INDEX {pending_crashing} ON {pending} (consumer) WHERE crashes > 0;
