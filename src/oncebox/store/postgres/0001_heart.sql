-- serves: 1

-- name: sequence
-- Arrival numbers. CACHE 1: a session that hoards numbers would hand out old ones late.
CREATE SEQUENCE {seq} CACHE 1;

-- name: inbox
-- What was claimed, and the audit log of it. Rows are inserted with the work that the message
-- causes, and stay as they are: only who came early gets a new seq, and payloads may be erased. Ids compare byte by byte (COLLATE "C"), whatever the database's locale.
CREATE TABLE {inbox} (
  consumer     text COLLATE "C" NOT NULL,
  origin       text COLLATE "C" NOT NULL,
  message_id   text COLLATE "C" NOT NULL,
  seq          bigint NOT NULL,
  type         text NOT NULL,
  version      integer NOT NULL,
  key          text COLLATE "C",
  payload      bytea,
  content_hash bytea,
  headers      json,
  source       text,
  coordinates  text,
  occurred_at  timestamptz,
  minted_at    timestamptz,
  received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, origin, message_id)
);

-- name: inbox_received_at
-- Rows arrive in the order of their time, so a summary per block range finds a day at no cost.
CREATE INDEX {inbox_received_at} ON {inbox} USING brin (received_at) WITH (pages_per_range = 32);

-- name: pending
-- What still has to run, with everything needed to run it; a row is deleted when it is done.
-- available_at: NULL = ready, a time = the retrying head of its key, infinity = parked behind it.
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
  alone        boolean NOT NULL DEFAULT false,
  deaths       integer NOT NULL DEFAULT 0,
  replay       bigint NOT NULL DEFAULT 0,
  available_at timestamptz,
  last_error   text
);

-- name: pending_ready
-- Finds the ready rows of a lane, however many others wait: no other index begins with the lane.
CREATE INDEX {pending_ready} ON {pending} (consumer, lane, seq) WHERE available_at IS NULL;

-- name: pending_retrying
-- Finds the heads whose time has come.
CREATE INDEX {pending_retrying} ON {pending} (consumer, available_at) WHERE available_at < 'infinity';

-- name: pending_key
-- Finds what waits for a key.
CREATE INDEX {pending_key} ON {pending} (key, consumer, seq);

-- name: dead
-- Dead letters and quarantine, with everything needed to run or show them.
-- sighting: what makes one quarantined delivery the same as another, so that a rewind adds nothing.
CREATE TABLE {dead} (
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
  parks        boolean NOT NULL DEFAULT false,
  payload      bytea NOT NULL,
  content_hash bytea,
  headers      json,
  source       text,
  coordinates  text,
  occurred_at  timestamptz,
  attempts     integer NOT NULL DEFAULT 0,
  deaths       integer NOT NULL DEFAULT 0,
  replay       bigint NOT NULL DEFAULT 0,
  error        text,
  fingerprint  text,
  sighting     bytea,
  died_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: dead_sighting
-- A delivery is quarantined once.
CREATE UNIQUE INDEX {dead_sighting} ON {dead} (consumer, sighting);

-- name: dead_parks
-- Finds the dead letters that hold a key.
CREATE INDEX {dead_parks} ON {dead} (key, consumer, seq) WHERE parks;

-- name: attempt
-- Every failed run of a handler, and every run of a message that had been stored.
-- An inline success needs no row: its inbox row says received and done at once.
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

-- name: action
-- What operators did: one row per message, written with the deed.
CREATE TABLE {action} (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer   text COLLATE "C" NOT NULL,
  act        text NOT NULL,
  by_whom    text NOT NULL,
  why        text NOT NULL,
  dead_id    bigint,
  origin     text COLLATE "C",
  message_id text COLLATE "C",
  reason     text,
  replay     bigint NOT NULL DEFAULT 0,
  acted_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: action_message
-- Finds what was done to a message.
CREATE INDEX {action_message} ON {action} (consumer, origin, message_id);

-- name: minute
-- Counters per worker and minute. A row shared by workers would make them wait for each other.
CREATE TABLE {minute} (
  consumer    text COLLATE "C" NOT NULL,
  minute      timestamptz NOT NULL,
  worker      text NOT NULL,
  received    bigint NOT NULL DEFAULT 0,
  done        bigint NOT NULL DEFAULT 0,
  duplicate   bigint NOT NULL DEFAULT 0,
  failed      bigint NOT NULL DEFAULT 0,
  parked      bigint NOT NULL DEFAULT 0,
  stored      bigint NOT NULL DEFAULT 0,
  dead        bigint NOT NULL DEFAULT 0,
  quarantined bigint NOT NULL DEFAULT 0,
  ignored     bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer, minute, worker)
);

-- name: consumer
-- One row per consumer whose records have been purged: nothing older than the mark can be
-- told from a duplicate.
CREATE TABLE {consumer} (
  consumer      text COLLATE "C" PRIMARY KEY,
  purged_before timestamptz NOT NULL
);

-- name: fence
-- A worker that was stopped and wakes up later must find its transaction gone. Before version 17
-- the server cannot end one that is in pipeline mode: a peer reads the name, and does.
CREATE FUNCTION {fence}(p_timeout text) RETURNS void LANGUAGE plpgsql VOLATILE AS $fence$
BEGIN
  IF p_timeout IS NULL THEN
    RETURN;
  ELSIF current_setting('server_version_num')::int >= 170000 THEN
    PERFORM set_config('transaction_timeout', p_timeout, true);
  ELSE
    PERFORM set_config('idle_in_transaction_session_timeout', p_timeout, true),
            set_config('application_name', 'oncebox until ' ||
              ceil(extract(epoch FROM clock_timestamp() + p_timeout::interval)), true);
  END IF;
END
$fence$;

-- name: claim
-- Claims a batch in one round trip. Every statement of a VOLATILE function has a snapshot of its
-- own: what the insert may have waited for (the other bytes, the waiting key, the mark) is
-- read in later statements. The plan of a claim made on an empty table must not scan a full one,
-- hence enable_seqscan = off.
-- answers: a letter per message. n: new. w: new, its key waits. r: new, its key has ready messages.
-- d: duplicate. x: duplicate with other bytes. l: new, but below the mark.
-- i alone: refused, because the transaction's snapshot may be older than the answer.
CREATE FUNCTION {claim}(
  p_consumer text, p_locks bigint[], p_origins text[], p_ids text[], p_types text[],
  p_versions integer[], p_keys text[], p_payloads bytea[], p_hashes bytea[], p_headers text[],
  p_sources text[], p_coordinates text[], p_occurred timestamptz[], p_minted timestamptz[],
  p_timeout text, p_any_snapshot boolean,
  OUT answers text, OUT seqs bigint[], OUT xid text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $claim$
DECLARE
  waiting text[];
  unfinished text[];
  v_mark timestamptz;
BEGIN
  -- A snapshot is taken before the locks are waited for: it would not show what their last holder
  -- left unfinished, and a message could overtake.
  IF current_setting('transaction_isolation') <> 'read committed'
     AND (cardinality(p_locks) > 0 OR NOT p_any_snapshot) THEN
    answers := 'i';
    RETURN;
  END IF;

  PERFORM {fence}(p_timeout);

  -- The locks come sorted, and before any number is drawn.
  PERFORM pg_advisory_xact_lock(l) FROM unnest(p_locks) AS l;

  -- Numbers are drawn in arrival order; rows are inserted in id order, so that two batches with
  -- the same ids wait for each other instead of deadlocking.
  WITH arrived AS MATERIALIZED (
    SELECT nextval('{seq}') AS seq, a.*
    FROM unnest(p_origins, p_ids, p_types, p_versions, p_keys, p_payloads, p_hashes, p_headers,
                p_sources, p_coordinates, p_occurred, p_minted)
      WITH ORDINALITY AS a (origin, id, type, version, key, payload, hash, headers,
                            source, coordinates, occurred, minted, n)
  ), inserted AS (
    INSERT INTO {inbox} (consumer, origin, message_id, seq, type, version, key, payload,
                         content_hash, headers, source, coordinates, occurred_at, minted_at)
    SELECT p_consumer, origin, id, seq, type, version, key, payload,
           hash, headers::json, source, coordinates, occurred, minted
    FROM arrived
    ORDER BY origin COLLATE "C", id COLLATE "C", n
    ON CONFLICT (consumer, origin, message_id) DO NOTHING
    RETURNING {inbox}.seq
  )
  SELECT array_agg(i.seq ORDER BY a.n) INTO seqs
  FROM arrived a LEFT JOIN inserted i ON i.seq = a.seq;

  xid := pg_current_xact_id()::text;

  -- If any message of a key waits, its newest does: one look per key, however many there are. The
  -- order by key, and consumer || '', leave no choice but the indexes that begin with the key: on
  -- tables that were tiny when they were last analyzed any other looks as good, and reads them whole.
  IF cardinality(p_locks) > 0 THEN
    SELECT array_agg(s.key) FILTER (WHERE s.waits), array_agg(s.key) INTO waiting, unfinished
    FROM (
      SELECT k.key, n.waits IS TRUE OR d.parks IS TRUE AS waits
      FROM (SELECT DISTINCT u.key FROM unnest(p_keys) AS u (key) WHERE u.key IS NOT NULL) k
      LEFT JOIN LATERAL (
        SELECT p.available_at IS NOT NULL AS waits FROM {pending} p
        WHERE p.key BETWEEN k.key AND k.key AND p.consumer = p_consumer
        ORDER BY p.key DESC, p.consumer DESC, p.seq DESC LIMIT 1
      ) n ON true
      LEFT JOIN LATERAL (
        SELECT true AS parks FROM {dead} d
        WHERE d.key = k.key AND d.consumer || '' = p_consumer AND d.parks LIMIT 1
      ) d ON true
      WHERE n.waits IS NOT NULL OR d.parks
    ) s;
  END IF;

  SELECT c.purged_before INTO v_mark FROM {consumer} c WHERE c.consumer = p_consumer;

  SELECT string_agg(
    CASE
      WHEN m.seq IS NULL THEN
        CASE WHEN (SELECT i.content_hash <> m.hash FROM {inbox} i
                   WHERE i.consumer = p_consumer AND i.origin = m.origin AND i.message_id = m.id)
             THEN 'x' ELSE 'd' END
      WHEN m.minted < v_mark THEN 'l'
      WHEN m.key = ANY (waiting) THEN 'w'
      WHEN m.key = ANY (unfinished) THEN 'r'
      ELSE 'n'
    END, '' ORDER BY m.n) INTO answers
  FROM unnest(seqs, p_origins, p_ids, p_keys, p_hashes, p_minted)
    WITH ORDINALITY AS m (seq, origin, id, key, hash, minted, n);
END
$claim$;

-- name: guard
-- Fails unless this is still the transaction of the claim. In one pipeline with COMMIT, a failure
-- here prevents the COMMIT.
CREATE FUNCTION {guard}(p_xid text) RETURNS void LANGUAGE plpgsql AS $guard$
BEGIN
  IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM p_xid THEN
    RAISE EXCEPTION 'this is not the transaction of the claim any more' USING ERRCODE = 'OB001';
  END IF;
END
$guard$;
