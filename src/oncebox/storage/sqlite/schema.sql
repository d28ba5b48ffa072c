-- name: create_schema_version
-- The version of the schema, and the oldest version that code must know to work with it.
CREATE TABLE IF NOT EXISTS {schema_version} (version INTEGER NOT NULL, serves INTEGER NOT NULL) STRICT;

-- name: has_schema_version
-- Whether the tables exist.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :meta;

-- name: read_schema_version
-- The version of the schema, and the oldest code that it serves.
SELECT version, serves FROM {schema_version};

-- name: clear_schema_version
-- The table has one row: delete the old one, then insert the new one.
DELETE FROM {schema_version};

-- name: write_schema_version
-- The new version.
INSERT INTO {schema_version} (version, serves) VALUES (:version, :serves);
