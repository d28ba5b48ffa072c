-- serves: 1

-- name: dead_seq
-- Finds out whether a message is a dead letter.
CREATE INDEX {dead_seq} ON {dead} (seq);

-- name: kept_at
-- When somebody kept house for the last time.
ALTER TABLE {consumer} ADD COLUMN kept_at timestamptz;
