"""The tables: migrations, the printed SQL, privileges, and schema versions that are refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from oncebox import Delivery, Inbox, Json, Kind, Retry
from oncebox.errors import CodeTooOld, ConfigurationError, SchemaMissing
from support.services import wait_until
from support.tables import read_rows
from support.worlds import MIGRATIONS, ON_POSTGRES, World, order, write_effect

pytestmark = pytest.mark.empty_database

MIGRATE = """
import asyncio, sys
from oncebox import Inbox
sys.stdin.readline()
print(len(Inbox("billing", sys.argv[1]).migrate()))
"""


def test_migrating_twice_is_harmless(world: World) -> None:
    inbox = world.inbox(migrate=False)
    assert world.migrate(inbox) == MIGRATIONS
    assert world.migrate(inbox) == []


@pytest.mark.only(("sqlite3", "psycopg"))
def test_migrating_from_processes_at_once_is_harmless(world: World) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, world.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [process.communicate("go\n")[0].strip() for process in processes]
    assert sorted(answers) == ["0", "0", "0", str(len(MIGRATIONS))]


@pytest.mark.only(("psycopg",))
def test_every_table_has_a_primary_key(world: World) -> None:
    """Where all tables are published, as Debezium does, rows of others cannot be deleted."""
    world.inbox()
    without = world.query(
        "SELECT relname FROM pg_class c WHERE relkind = 'r' AND relname LIKE 'oncebox_%' AND NOT "
        "EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
    )
    assert without == []


def test_tables_are_never_made_on_first_use(world: World) -> None:
    inbox = world.inbox(migrate=False)
    world.on(inbox, "order", write_effect)
    with pytest.raises(SchemaMissing, match=r"missing.*: (call inbox\.migrate\(\)|add 'oncebox)"):
        world.process(inbox, [order("a")])
    world.migrate(inbox)
    assert world.kinds(inbox, [order("a")]) == ["done"]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_a_newer_schema_that_serves_this_code_is_fine(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.execute("UPDATE oncebox_schema_version SET version = 99, serves = 1")
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert world.migrate(inbox) == []
    assert world.query("SELECT version FROM oncebox_schema_version") == [(99,)]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_code_too_old_for_the_schema_is_refused(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.execute("UPDATE oncebox_schema_version SET version = 99, serves = 98")
    with pytest.raises(CodeTooOld, match="upgrade oncebox"):
        world.process(inbox, [order("a")])
    assert world.effects() == []


@pytest.mark.only(("sqlite3", "psycopg"))
def test_an_older_schema_is_refused(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.execute("UPDATE oncebox_schema_version SET version = 0, serves = 0")
    with pytest.raises(SchemaMissing, match="have version 0"):
        world.process(inbox, [order("a")])


@pytest.mark.only(("sqlite3", "psycopg"))
def test_the_printed_sql_makes_the_tables(world: World) -> None:
    """What a database administrator reviews and runs is what migrate() would have run."""
    inbox = world.inbox(migrate=False)
    script = inbox.sql()
    assert "-- " in script
    if world.is_postgres:
        with psycopg.connect(world.url) as connection:
            connection.execute(script)
    else:
        with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"))) as database:
            database.executescript(script)
    world.on(inbox, "order", write_effect)
    assert world.migrate(inbox) == []
    assert world.kinds(inbox, [order("a")]) == ["done"]


def test_a_prefix_keeps_inboxes_apart(world: World) -> None:
    first, second = world.inbox(prefix="first_"), world.inbox(prefix="second_")
    for inbox in (first, second):
        world.on(inbox, "order", write_effect)
        assert world.kinds(inbox, [order("a")]) == ["done"]
    assert world.query("SELECT count(*) FROM first_inbox") == [(1,)]
    assert world.query("SELECT count(*) FROM second_message") == [(1,)]


@pytest.mark.only(ON_POSTGRES)
def test_tables_live_in_the_schema_that_is_named(world: World) -> None:
    world.execute('CREATE SCHEMA "select"')
    inbox = world.inbox(schema="select")
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a"), order("a")]) == ["done", "duplicate"]
    assert world.query('SELECT message_id FROM "select".oncebox_message') == [("a",)]


@pytest.mark.parametrize("name", ["Robert'); --", "", "9lives", "x" * 64, 'a"b', "Ünder"])
def test_names_that_are_not_identifiers_are_refused(name: str) -> None:
    for option in ("prefix", "schema"):
        names: dict[str, Any] = {option: name}
        with pytest.raises(ConfigurationError, match="plain SQL identifier"):
            Inbox("billing", "sqlite:///x.db", **names)


@pytest.mark.only(("psycopg",))
def test_a_runtime_role_needs_no_rights_to_change_the_schema(world: World) -> None:
    world.execute(
        "DO $$ BEGIN CREATE ROLE worker LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
    )
    for statement in world.inbox().sql(grants_to="worker").splitlines():
        world.execute(statement)
    world.execute("GRANT ALL ON effects TO worker")
    restricted_url = world.url.replace("postgres@", "worker@")
    restricted = Inbox("billing", restricted_url)
    world.inboxes.append(restricted)
    world.on(restricted, "order", write_effect)
    world.on(restricted, "bad", failing)
    batch = [order("a"), order("b", type="bad"), order("a"), order("c", type="unknown")]
    assert world.kinds(restricted, batch) == ["done", "failed", "duplicate", "dead"]
    restricted.replays.start("again", ids=["a"], why="to try")
    assert restricted.drain()[Kind.done] == 1
    restricted.purge.run()
    restricted.messages.erase(ids=["a"], why="to try")
    numbered = Inbox(
        "accounts", restricted_url, identity=Json(id="id", type="type", key="key", sequence="n")
    )
    world.inboxes.append(numbered)
    numbered.on("order")(lambda payload: None)
    moves = [b'{"id": "%d", "type": "order", "key": "a", "n": %d}' % (n, n) for n in (2, 1)]
    numbered.process([Delivery(move) for move in moves])
    assert numbered.drain()[Kind.done] == 2
    with (
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        psycopg.connect(restricted_url) as connection,
    ):
        connection.execute("DROP TABLE oncebox_inbox")


@pytest.mark.only(("psycopg",))
def test_grants_are_for_the_tables_of_prefix_and_schema(world: World) -> None:
    inbox = Inbox("billing", world.url, prefix="box_", schema="events")
    statements = inbox.sql(grants_to="worker").splitlines()
    assert statements[0] == 'GRANT USAGE ON SCHEMA "events" TO "worker";'
    assert statements[1] == 'GRANT SELECT ON "events"."box_schema_version" TO "worker";'
    assert all(statement.endswith(' TO "worker";') for statement in statements)
    (odd, *_) = inbox.sql(grants_to='a"; DROP').splitlines()
    assert odd.endswith(' TO "a""; DROP";')
    with pytest.raises(ConfigurationError, match="the name of a role, got ''"):
        inbox.sql(grants_to="")


def test_sqlite_has_no_grants() -> None:
    with pytest.raises(ConfigurationError, match="SQLite has no roles"):
        Inbox("billing", "sqlite:///x.db").sql(grants_to="worker")


def failing(payload: dict[str, Any], tx: Any) -> None:
    raise ValueError("no")


@pytest.mark.only(("django-postgres", "django-sqlite"))
def test_djangos_migrations_make_and_remove_the_tables(world: World) -> None:
    from io import StringIO

    from django.core.management import call_command

    alias = world.database().alias
    call_command("migrate", "oncebox", database=alias, verbosity=0)
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    assert world.migrate(inbox) == []
    assert world.kinds(inbox, [order("a")]) == ["done"]
    printed = StringIO()
    call_command("sqlmigrate", "oncebox", "0001", database=alias, stdout=printed)
    assert 'CREATE TABLE "oncebox_inbox"' in printed.getvalue()
    call_command("migrate", "oncebox", "zero", database=alias, verbosity=0)
    with pytest.raises(Exception, match="oncebox_inbox"):
        world.query("SELECT * FROM oncebox_inbox")


@pytest.mark.only(("django-postgres",))
def test_django_sees_no_changes_that_lack_a_migration(world: World) -> None:
    from django.core.management import call_command

    world.database()
    call_command("makemigrations", "oncebox", check=True, dry_run=True, verbosity=0)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("table", ["inbox", "pending", "dead_letter"])
def test_a_claim_planned_on_an_empty_table_does_not_scan_a_full_one(
    world: World, table: str
) -> None:
    """A session keeps the plan of its first claims, made when there was nothing to scan."""
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.execute(f"ALTER TABLE oncebox_{table} SET (autovacuum_enabled = off)")
    for statement in FILL.values():  # one row each, so that everything is looked at and planned
        world.execute(statement.replace("50000", "1"))
    world.execute("ANALYZE")  # now the planner knows how small the tables are
    for number in range(12):  # long enough for a generic plan
        world.process(inbox, [order(f"warm-{number}", key="k"), order("twice")])
    world.execute(FILL[table].replace("(1, 50000)", "(2, 50000)"))
    world.process(inbox, [order(f"old-{number}", key=str(number)) for number in range(1, 101)])
    inbox.close()  # a session reports what it read when it ends, at the latest
    wait_until(lambda: read_rows(world, table) > 0, "nothing was read")
    assert read_rows(world, table) < 10_000, "100 messages must not read the whole table"


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("key", ["n", "'hot'"], ids=["many keys", "one key"])
def test_a_drain_planned_on_an_empty_table_does_not_scan_a_full_one(world: World, key: str) -> None:
    """50,000 blocked messages of other keys, or of the key that is released."""
    inbox = world.inbox(retry=Retry(initial_delay=timedelta(0), max_delay=timedelta(0), jitter=0))
    world.on(inbox, "order", fail_once())
    world.execute("ALTER TABLE oncebox_pending SET (autovacuum_enabled = off)")
    world.execute(FILL["pending"].replace("50000", "1"))
    world.execute("ANALYZE")
    for number in range(12):
        world.receive(inbox, [order(f"warm-{number}", key="k")])
        world.drain(inbox)
    wall = FILL["pending"].replace("(1, 50000)", "(2, 50000)").replace("1, n, ''", f"1, {key}, ''")
    world.execute(wall.replace("'billing', 0", "'billing', n % 64"))
    world.receive(inbox, [order("free", key="free"), order("behind", key="hot")])
    world.drain(inbox)
    inbox.close()
    assert "free" in world.effects()
    wait_until(lambda: read_rows(world, "pending") > 0, "nothing was read")
    assert read_rows(world, "pending") < 10_000, "a few messages must not read the whole table"


def fail_once() -> Any:
    """A handler that fails for the first time, so that a drain has all to do that it can."""
    seen: set[str] = set()

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        if payload["id"] not in seen:
            seen.add(payload["id"])
            raise ValueError("not yet")

    return handle


FILL = {
    "inbox": "INSERT INTO oncebox_inbox (consumer, origin, message_id, seq, type, version) "
    "SELECT 'billing', 'test', 'old-' || n, -n, '', 1 FROM generate_series(1, 50000) n",
    "pending": "INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, "
    "version, key, payload, available_at) SELECT 'billing', 0, -n, 'test', 'waits-' || n, '', "
    "1, n, '', 'infinity' FROM generate_series(1, 50000) n",
    "dead_letter": "INSERT INTO oncebox_dead_letter "
    "(consumer, state, reason, key, blocks_key, payload) "
    "SELECT 'billing', 'dead', '', n, true, '' FROM generate_series(1, 50000) n",
}
