-- name: lock_migrations
-- One migration at a time, whichever process gets here first.
SELECT pg_advisory_xact_lock(:lock);

-- name: create_meta
-- The schema's version, and the oldest version that code must know to work with it.
CREATE TABLE IF NOT EXISTS {meta} (version integer NOT NULL, serves integer NOT NULL);

-- name: has_meta
-- Whether the tables are there, asked in a way that does not abort the transaction.
SELECT to_regclass(:meta) IS NOT NULL;

-- name: read_meta
-- The schema's version and what it serves.
SELECT version, serves FROM {meta};

-- name: clear_meta
-- The version is one row: delete the old one,
DELETE FROM {meta};

-- name: write_meta
-- and write the new one.
INSERT INTO {meta} (version, serves) VALUES (:version, :serves);
