"""PostgreSQL databases that have the tables of an inbox: most tests need them, few make them.

To make the tables costs more than most tests. So a database goes from test to test: its rows are
deleted and its sequences begin again. One in which a test changed more than rows is not used again.
"""

from __future__ import annotations

import psycopg

from oncebox import Inbox
from support.services.postgres import END_SESSIONS, Postgres

TABLES = (
    "CREATE TABLE effects (id text, body text)",
    "CREATE TABLE accounts (name text PRIMARY KEY, balance integer)",
)
"""What the handlers of the tests write to."""

VERSION = "oncebox_schema_version"
LARGEST = 2**20
"""Bytes of all tables and indexes: deleted rows are still there, and must not change a plan."""

_CATALOGS = {
    "pg_attribute": "attrelid >= 16384",
    "pg_constraint": "oid >= 16384",
    "pg_index": "indexrelid >= 16384",
    "pg_namespace": "true",
    "pg_proc": "oid >= 16384",
    "pg_publication": "true",
    "pg_trigger": "true",
    "pg_type": "oid >= 16384",
}
FINGERPRINT = " UNION ALL ".join(
    [
        "SELECT 'relations', md5(string_agg(concat_ws(' ', oid, xmin, relpages, reltuples), ',' "
        "ORDER BY oid)) FROM pg_class WHERE oid >= 16384",
        *[
            f"SELECT '{name}', count(*) || ' ' || coalesce(max(xmin::text::bigint), 0) "
            f"FROM {name} WHERE {condition}"
            for name, condition in _CATALOGS.items()
        ],
        f"SELECT 'version', string_agg(concat_ws(' ', xmin, version, serves), ',') FROM {VERSION}",
    ]
)
"""Whatever changes more than rows changes this: a table, a statistic, a function, the version."""

ROWS = f"""
SELECT coalesce(sum(pg_total_relation_size(oid)) FILTER (WHERE relkind IN ('r', 'p')), 0),
  coalesce(string_agg(
    CASE relkind WHEN 'S' THEN format('SELECT setval(%L, 1, false)', oid::regclass)
    ELSE format('DELETE FROM %s', oid::regclass) END, '; ' ORDER BY relkind, oid DESC
  ) FILTER (WHERE relkind IN ('r', 'p', 'S') AND relname <> '{VERSION}'), '')
FROM pg_class WHERE oid >= 16384 AND relnamespace = 'public'::regnamespace
"""
"""The size of everything, and the statements that remove all rows."""


class MigratedDatabases:
    """The databases of one server."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._fingerprints: dict[str, object] = {}
        self._free: list[str] = []

    def lend(self) -> str:
        """The address of a database with the tables of an inbox, all of them empty."""
        if self._free:
            return self._free.pop()
        url = self._postgres.create_database()
        with Inbox("billing", url) as inbox:
            inbox.migrate()
        with psycopg.connect(url, autocommit=True) as connection:
            for table in TABLES:
                connection.execute(table)
            self._fingerprints[url] = connection.execute(FINGERPRINT).fetchall()
        return url

    def take_back(self, url: str) -> None:
        """Remove all rows for the next test, and everything if the test changed more than rows."""
        self._postgres.heal()
        if self._is_emptied(url):
            self._free.append(url)
        else:
            del self._fingerprints[url]
            self._postgres.clear_database(url)

    def _is_emptied(self, url: str) -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(END_SESSIONS)
            settings = (
                "SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase "
                "WHERE datname = current_database()"
            )
            if connection.execute(settings).fetchone():
                return False
            try:
                found = connection.execute(FINGERPRINT).fetchall()
            except psycopg.errors.UndefinedTable:
                return False
            if found != self._fingerprints[url]:
                return False
            row = connection.execute(ROWS).fetchone()
            assert row is not None
            size, statements = row
            if size > LARGEST:
                return False
            connection.execute(statements)  # together: one transaction
            return True
