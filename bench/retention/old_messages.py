"""Old messages: the database generates a table full of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg

from bench.drain.oncebox import NAME

DAYS = 7
"""How long messages are kept; the old ones arrived a month ago and in the three weeks since."""

# Some have headers, some no key, no time of their own, no payload any more, an empty or binary one.
POSTGRES = f"""
WITH old AS MATERIALIZED (
  SELECT n, now() - interval '30 days' + n * interval '21 days' / %(rows)s AS at,
         md5(n::text) AS chance
  FROM generate_series(1, %(rows)s::bigint) AS s (n) ORDER BY n
), m AS (
  SELECT n, at, nextval('oncebox_seq') AS seq, decode(chance, 'hex') AS hash, o.id,
         'account-' || lpad((n * 7919 %% 10000)::text, 5, '0') AS key,
         convert_to(format('{{"id":"%%s","account":"account-%%s","n":%%s,"amount":%%s}}', o.id,
                           n * 7919 %% 10000, n, n %% 100), 'UTF8') AS payload
  FROM (SELECT old.*, overlay(overlay(overlay(
          lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || left(chance, 19)
          PLACING '-' FROM 9 FOR 0) PLACING '-' FROM 14 FOR 0) PLACING '-' FROM 19 FOR 0) AS id
        FROM old) o
), i AS (
  INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, key, payload,
                             content_hash, headers, source, coordinates, occurred_at, produced_at,
                             received_at)
  SELECT '{NAME}', 'bank', id, seq, 'payment', 1, CASE WHEN n %% 50 > 0 THEN key END,
         CASE n %% 1000 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN '\\xff00fe' ELSE payload END,
         hash,
         CASE WHEN n %% 10 = 0 THEN format('{{"trace": "%%s",  "n": "\u00e4"}}', id)::json END,
         'default', n %% 12 || ' ' || n, CASE WHEN n %% 3 = 0 THEN at END, at, at
  FROM m ORDER BY n
)
INSERT INTO oncebox_attempt (consumer, origin, message_id, number, outcome, error, fingerprint,
                             duration, worker, ended_at)
SELECT '{NAME}', 'bank', id, run, CASE run WHEN 1 THEN 'failed' ELSE 'done' END,
       CASE run WHEN 1 THEN 'TimeoutError: no answer for ' || id END,
       CASE run WHEN 1 THEN 'f' || n %% 7 END, n / 7.0, 'host-' || n %% 4, at + run * interval '1 s'
FROM m CROSS JOIN generate_series(1, 2) AS r (run)
WHERE run = 2 AND %(stored)s OR n %% 10 = 0 ORDER BY n, run"""

SQLITE = f"""
CREATE TEMP TABLE old AS
WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :rows)
SELECT n, at, printf('%012x-%s', at / 1000, lower(hex(randomblob(10)))) AS id FROM (
  SELECT n, (strftime('%s') - 30 * 86400) * 1000000 + n * (21 * 86400000000 / :rows) AS at FROM s
);
INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version, key, payload,
                           content_hash, headers, source, coordinates, occurred_at, produced_at,
                           received_at)
SELECT '{NAME}', 'bank', id, n, 'payment', 1,
       CASE WHEN n % 50 > 0 THEN printf('account-%05d', n * 7919 % 10000) END,
       CASE n % 1000 WHEN 0 THEN NULL WHEN 1 THEN x'' WHEN 2 THEN x'ff00fe'
       ELSE CAST(printf('{{"id":"%s","account":"account-%d","n":%d,"amount":%d}}', id,
                        n * 7919 % 10000, n, n % 100) AS blob) END,
       randomblob(16),
       CASE WHEN n % 10 = 0 THEN printf('{{"trace": "%s",  "n": "ä"}}', id) END, 'default',
       n % 12 || ' ' || n, CASE WHEN n % 3 = 0 THEN at END, at, at
FROM old ORDER BY n;
INSERT INTO oncebox_attempt (consumer, origin, message_id, number, outcome, error, fingerprint,
                             duration, worker, ended_at)
SELECT '{NAME}', 'bank', id, run, CASE run WHEN 1 THEN 'failed' ELSE 'done' END,
       CASE run WHEN 1 THEN 'TimeoutError: no answer for ' || id END,
       CASE run WHEN 1 THEN 'f' || n % 7 END, n / 7.0, 'host-' || n % 4, at + run * 1000000
FROM old CROSS JOIN (SELECT 1 AS run UNION SELECT 2) WHERE n % 10 = 0 ORDER BY n, run;
DROP TABLE old;
"""

# The watermark follows the last arrival: record one.
ARRIVED = """
INSERT INTO oncebox_minute_counter (consumer, minute, worker, received)
VALUES ({consumer}, {now}, 'old', 1)
"""


def fill(url: str, rows: int, *, stored: bool = False) -> None:
    """Old messages that are done. Of those that were stored, every one has an attempt."""
    if url.startswith("sqlite"):
        _fill_file(url, rows)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(POSTGRES, {"rows": rows, "stored": stored})
        connection.execute(
            ARRIVED.format(consumer=f"'{NAME}'", now="date_trunc('minute', now())").encode()
        )
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _fill_file(url: str, rows: int) -> None:
    minute = "strftime('%s') / 60 * 60000000"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        for statement in filter(str.strip, SQLITE.split(";\n")):
            connection.execute(statement, {"rows": rows} if ":rows" in statement else {})
        connection.execute(ARRIVED.format(consumer=f"'{NAME}'", now=minute))
        connection.commit()


def left(url: str) -> int:
    """How many messages are left that arrived before yesterday."""
    with psycopg.connect(url) as connection:
        count = "SELECT count(*) FROM oncebox_inbox WHERE received_at < now() - interval '1 day'"
        return int(connection.execute(count).fetchall()[0][0])
