"""One table with a status, drained by hand: what is usually written to keep the order of keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg

from bench.drain import load as loads
from bench.drain.load import BLOCKED_KEY, Load, Payment
from bench.drain.worker_pool import Drain

TABLES = """
CREATE TABLE job (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text COLLATE "C" NOT NULL UNIQUE,
  key text COLLATE "C" NOT NULL, payload bytea NOT NULL, status text NOT NULL DEFAULT 'pending',
  attempts integer NOT NULL DEFAULT 0, available_at timestamptz NOT NULL DEFAULT now(),
  done_at timestamptz);
CREATE INDEX job_ready ON job (id) WHERE status = 'pending';
CREATE INDEX job_key ON job (key, id) WHERE status = 'pending';
"""
CLEAR = "TRUNCATE ledger, job"
LEFT = "SELECT count(*) FROM job WHERE status = 'pending'"
FILL = f"""
INSERT INTO job (message_id, key, payload) SELECT id, key, payload FROM ({loads.MESSAGES}) m"""
FILL_BLOCKED = f"""
INSERT INTO job (message_id, key, payload, attempts, available_at)
SELECT 'blocked-' || n, '{BLOCKED_KEY}', '{{}}', (n = 1)::int,
       CASE WHEN n = 1 THEN now() + interval '1 day' ELSE now() END
FROM generate_series(1, %(blocked)s) n"""

TAKE = """
SELECT id, payload FROM job j
WHERE status = 'pending' AND available_at <= now() AND NOT EXISTS (
  SELECT 1 FROM job e WHERE e.key = j.key AND e.status = 'pending' AND e.id < j.id)
ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"""
WORK = """
INSERT INTO ledger (message_id, account, n, amount)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::integer[])"""
OPTIONS = "-c enable_hashjoin=off -c enable_mergejoin=off"
"""Left to itself, PostgreSQL may read and hash the whole table for every batch."""
FINISH = "UPDATE job SET status = 'done', done_at = now() WHERE id = ANY (%b::bigint[])"


def create(url: str) -> None:
    """The tables of both."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
        loads.create(connection)


def fill(url: str, load: Load) -> None:
    """Replace what is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CLEAR)
        if load.blocked:
            connection.execute(FILL_BLOCKED, {"blocked": load.blocked})
        connection.execute(FILL, loads.parameters(load))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def left(url: str) -> int:
    """How many messages are not done."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(LEFT).fetchall()[0][0])


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """Two round trips a batch: take; then work, finish and commit in a pipeline."""
    decode = msgspec.json.Decoder(Payment).decode
    with psycopg.connect(url, options=OPTIONS) as connection:

        def drain() -> int:
            rows = connection.cursor(binary=True).execute(TAKE, [batch]).fetchall()
            if not rows:
                connection.commit()
                return 0
            payments = [decode(payload) for _, payload in rows]
            with connection.pipeline():
                connection.execute(
                    WORK,
                    (
                        [payment.id for payment in payments],
                        [payment.account for payment in payments],
                        [payment.n for payment in payments],
                        [payment.amount for payment in payments],
                    ),
                )
                connection.execute(FINISH, [[id for id, _ in rows]])
                connection.commit()
            return len(rows)

        yield drain
