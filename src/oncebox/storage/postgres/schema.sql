-- name: lock_migrations
-- Only one process migrates at a time. The others wait.
SELECT pg_advisory_xact_lock(:lock);

-- name: create_schema_version
-- The version of the schema, and the oldest version that code must know to work with it. With a primary
-- key: where all tables are published, as Debezium does, rows of a table without one cannot be deleted.
CREATE TABLE IF NOT EXISTS {schema_version} (version integer PRIMARY KEY, serves integer NOT NULL);

-- name: has_schema_version
-- Whether the tables exist. A missing table does not abort the transaction here.
SELECT to_regclass(:meta) IS NOT NULL;

-- name: read_schema_version
-- The version of the schema, and the oldest code that it serves.
SELECT version, serves FROM {schema_version};

-- name: clear_schema_version
-- The table has one row: delete the old one, then insert the new one.
DELETE FROM {schema_version};

-- name: write_schema_version
-- The new version.
INSERT INTO {schema_version} (version, serves) VALUES (:version, :serves);
