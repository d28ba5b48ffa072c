-- name: create_meta
-- The schema's version, and the oldest version that code must know to work with it.
CREATE TABLE IF NOT EXISTS {meta} (version INTEGER NOT NULL, serves INTEGER NOT NULL) STRICT;

-- name: has_meta
-- Whether the tables are there.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :meta;

-- name: read_meta
-- The schema's version and what it serves.
SELECT version, serves FROM {meta};

-- name: clear_meta
-- The version is one row: delete the old one,
DELETE FROM {meta};

-- name: write_meta
-- and write the new one.
INSERT INTO {meta} (version, serves) VALUES (:version, :serves);
