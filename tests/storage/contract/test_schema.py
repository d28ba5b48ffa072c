"""The contract of stores: migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest

from oncebox.errors import ConfigurationError
from oncebox.storage.steps import run
from support.stores import StoreHarness, arrival
from support.worlds import MIGRATIONS

pytestmark = pytest.mark.empty_database

TABLES = "SELECT type, name FROM sqlite_master WHERE name LIKE 'oncebox%' AND type IN ({})"


def drop_tables(harness: StoreHarness) -> None:
    """Make the database empty again."""
    if harness.store.dialect == "postgres":
        statements = ["DROP SCHEMA public CASCADE", "CREATE SCHEMA public"]
    else:
        found = harness.query(TABLES.format("'view'")) + harness.query(TABLES.format("'table'"))
        statements = [f"DROP {kind} {name}" for kind, name in found]
    with harness.transaction() as work:
        for statement in statements:
            run(work.execute(statement, {}))


def execute_script(url: str, script: str) -> None:
    """Execute a script as an operator does, without oncebox."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
        return
    with psycopg.connect(url) as server:
        server.execute(script.encode())


def test_migrations_are_applied_once_and_recorded(harness: StoreHarness) -> None:
    assert harness.applied == MIGRATIONS
    with harness.transaction() as work:
        assert run(harness.store.migrate(work)) == []
        assert run(harness.store.version(work)) == (2, 2)


def test_a_schema_with_only_the_claims_tables_is_completed_later(harness: StoreHarness) -> None:
    drop_tables(harness)
    assert harness.call("version") is None
    assert harness.call("migrate", claims_only=True) == MIGRATIONS[:1]
    assert harness.call("version")[0] == 1
    assert harness.call("migrate", claims_only=True) == []
    assert harness.call("claim_one", "c", arrival("a")) == "n"
    assert harness.call("migrate") == MIGRATIONS[1:]
    assert harness.call("version") == (2, 2)
    assert harness.receive(arrival("a"), arrival("b")) == "dn"


@pytest.mark.parametrize("claims_only", [False, True])
def test_the_script_creates_the_same_schema_as_the_migrations(
    harness: StoreHarness, claims_only: bool, request: pytest.FixtureRequest
) -> None:
    drop_tables(harness)
    script = harness.store.script(claims_only=claims_only)
    execute_script(request.getfixturevalue(f"{harness.store.dialect}_url"), script)
    assert harness.call("version")[0] == (1 if claims_only else 2)
    assert harness.call("migrate") == (MIGRATIONS[1:] if claims_only else [])
    assert harness.receive(arrival("a")) == "n"


def test_grants_name_what_the_migrations_create(harness: StoreHarness) -> None:
    if harness.store.dialect == "sqlite":
        with pytest.raises(ConfigurationError, match="SQLite has no roles"):
            harness.store.grants("worker")
        return
    statements = harness.store.grants("worker", claims_only=True).splitlines()
    assert [s.removesuffix(' TO "worker";').removeprefix("GRANT ") for s in statements] == [
        'SELECT ON "oncebox_schema_version"',
        'SELECT ON "oncebox_consumer"',
        'SELECT, INSERT, DELETE ON "oncebox_inbox"',
        'USAGE, SELECT ON SEQUENCE "oncebox_seq"',
    ]
