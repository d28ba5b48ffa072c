"""A schema that has only the claims tables: claim() works, the rest names the remedy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from oncebox import Inbox
from oncebox.errors import PayloadMismatch, SchemaMissing, SnapshotRisk, TooLate
from support.callers import Caller, connected
from support.worlds import ALL, BOTH, World, order, write_effect

pytestmark = pytest.mark.empty_database

NOT_DJANGO = [name for name in ALL if not name.startswith("django")]
REMEDY = r"has only the claims tables: (call inbox\.migrate\(\)|add 'oncebox)"


@pytest.fixture
def caller(world: World) -> Iterator[Caller]:
    inbox = world.inbox(migrate=False)
    assert world.migrate(inbox, claims_only=True) == ["0001_claims"]
    yield from connected(Caller(world, inbox))


def tables(world: World) -> list[str]:
    names = (
        "SELECT relname FROM pg_class WHERE relname LIKE 'oncebox%' AND relkind IN ('r', 'v')"
        if world.is_postgres
        else "SELECT name FROM sqlite_master WHERE name LIKE 'oncebox%' AND type <> 'index'"
    )
    return sorted(row[0] for row in world.query(names))


def ids(world: World) -> list[str]:
    return sorted(row[0] for row in world.query("SELECT message_id FROM oncebox_inbox"))


CLAIMS = ["oncebox_consumer", "oncebox_inbox", "oncebox_schema_version"]


def test_it_has_three_tables_and_no_function(caller: Caller) -> None:
    assert tables(caller.world) == CLAIMS
    if caller.world.is_postgres:
        functions = "SELECT proname FROM pg_proc WHERE proname LIKE 'oncebox%'"
        assert caller.world.query(functions) == []


def test_messages_are_claimed_once(caller: Caller) -> None:
    assert caller.claim("a") is True
    assert caller.claim("a") is False
    assert caller.claim_many(["c", "a", "b", "c"]) == [True, False, True, False]
    caller.commit()
    caller.begin()
    assert caller.claim_many(["a", "d"]) == [False, True]
    caller.rollback()
    assert ids(caller.world) == ["a", "b", "c"]


def test_refused_messages_are_not_stored(caller: Caller) -> None:
    old = datetime.now(UTC) - timedelta(days=2)
    assert caller.claim("a", payload=b"one") is True
    with pytest.raises(PayloadMismatch):
        caller.claim("a", payload=b"two")
    caller.commit()
    caller.begin()
    watermark = old + timedelta(days=1)
    kept = watermark if caller.world.is_postgres else int(watermark.timestamp() * 1_000_000)
    statement = "INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', %s)"
    if caller.world.name == "django-sqlite":  # whose transaction holds the write lock
        caller.connection.cursor().execute(statement, [kept])
    else:
        caller.world.execute(statement, kept)
    with pytest.raises(TooLate, match="nothing was stored"):
        caller.claim("old", produced_at=old)
    assert caller.claim("newer", produced_at=watermark + timedelta(hours=1)) is True
    caller.commit()
    assert ids(caller.world) == ["a", "newer"]


@pytest.mark.only(NOT_DJANGO)
def test_everything_else_names_the_remedy(caller: Caller) -> None:
    with pytest.raises(SchemaMissing, match=REMEDY):
        caller.failed("a", ValueError("no"))
    caller.rollback()
    caller.begin()
    world, inbox = caller.world, caller.inbox
    world.on(inbox, "order", write_effect)
    with pytest.raises(SchemaMissing, match=REMEDY):
        world.process(inbox, [order("a")])
    with pytest.raises(SchemaMissing, match=REMEDY):
        world.run(inbox.astatus()) if world.is_async else inbox.status()
    assert caller.claim("a") is True, "the transaction goes on"


@pytest.mark.only(NOT_DJANGO)
def test_a_full_migration_keeps_the_claims(caller: Caller) -> None:
    world, inbox = caller.world, caller.inbox
    assert caller.claim("a", origin="test", payload=b"one") is True
    assert caller.claim("a", origin="test") is False
    caller.commit()
    assert world.migrate(inbox) == ["0002_processing"]
    assert world.migrate(inbox, claims_only=True) == []
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("b"), order("b")]) == ["done", "duplicate"]
    fresh = world.inbox(migrate=False)
    world.on(fresh, "order", write_effect)
    kinds = world.kinds(fresh, [order("a"), order("c")])
    assert kinds == ["quarantined", "done"], "the payload of a is another one"
    caller.begin()
    with pytest.raises(PayloadMismatch):
        caller.claim("a", origin="test", payload=b"two")
    assert caller.claim("a", origin="test", payload=b"one") is False
    caller.commit()
    seqs = [row[0] for row in world.query("SELECT seq FROM oncebox_inbox ORDER BY received_at")]
    assert seqs == sorted(set(seqs)), "numbers go on"


@pytest.mark.only(NOT_DJANGO)
def test_process_sees_earlier_claims_as_duplicates(caller: Caller) -> None:
    world = caller.world
    assert caller.claim("a", origin="test") is True
    caller.commit()
    world.migrate(caller.inbox)
    world.on(caller.inbox, "order", write_effect)
    assert world.kinds(caller.inbox, [order("a"), order("b")]) == ["duplicate", "done"]


@pytest.mark.only(("django-postgres", "django-sqlite"))
def test_django_makes_the_claims_tables_and_upgrades_them(world: World) -> None:
    from django.core.management import call_command
    from django.db import connections, transaction

    alias = world.database().alias
    call_command("migrate", "oncebox", "0001", database=alias, verbosity=0)
    assert tables(world) == CLAIMS
    inbox = world.inbox(migrate=False)
    with transaction.atomic(using=alias):
        assert inbox.claim(connections[alias], "a", origin="test") is True
    world.on(inbox, "order", write_effect)
    with pytest.raises(SchemaMissing, match=REMEDY):
        world.process(inbox, [order("a")])
    call_command("migrate", "oncebox", database=alias, verbosity=0)
    assert world.kinds(inbox, [order("a"), order("b")]) == ["duplicate", "done"]
    call_command("migrate", "oncebox", "0001", database=alias, verbosity=0)
    assert tables(world) == CLAIMS
    assert ids(world) == ["a", "b"]
    call_command("migrate", "oncebox", "zero", database=alias, verbosity=0)
    assert tables(world) == []


@pytest.mark.only(BOTH)
def test_the_printed_sql_makes_the_claims_tables(world: World) -> None:
    inbox = world.inbox(migrate=False)
    script = inbox.sql(claims_only=True)
    if world.is_postgres:
        with psycopg.connect(world.url) as connection:
            connection.execute(script)
    else:
        import sqlite3

        file = sqlite3.connect(world.url.removeprefix("sqlite:///"))
        file.executescript(script)
        file.close()
    assert tables(world) == CLAIMS
    assert world.migrate(inbox, claims_only=True) == []
    assert world.migrate(inbox) == ["0002_processing"]


# -- two transactions at once ----------------------------------------------------------------------


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("many", [False, True], ids=["claim", "claim_many"])
def test_a_concurrent_claim_waits_for_the_other_transaction(
    world: World, ends: str, many: bool
) -> None:
    inbox = world.inbox(migrate=False)
    world.migrate(inbox, claims_only=True)
    results: list[Any] = []

    def claim() -> None:
        with psycopg.connect(world.url) as other:
            found = inbox.claim_many(other, ["b", "a"]) if many else [inbox.claim(other, "a")]
            results.extend(found)

    with psycopg.connect(world.url) as one:
        assert inbox.claim(one, "a", payload=b"one")
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it waits"
        getattr(one, ends)()
        thread.join(10)
    assert results == ([True] if many else []) + [ends == "rollback"]


@pytest.mark.only(("psycopg",))
def test_a_payload_of_a_concurrent_claim_is_compared(world: World) -> None:
    """The second statement sees what the first one waited for."""
    inbox = world.inbox(migrate=False)
    world.migrate(inbox, claims_only=True)
    raised: list[BaseException] = []

    def claim() -> None:
        with psycopg.connect(world.url) as other:
            try:
                inbox.claim(other, "a", payload=b"two")
            except PayloadMismatch as error:
                raised.append(error)

    with psycopg.connect(world.url) as one:
        assert inbox.claim(one, "a", payload=b"one")
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(0.3)
        one.commit()
        thread.join(10)
    assert len(raised) == 1


@pytest.mark.only(("psycopg",))
def test_a_watermark_that_moves_during_a_claim_refuses_old_messages(world: World) -> None:
    """A purge moves the watermark and deletes the same id, while the claim waits for the purge."""
    inbox = world.inbox(migrate=False)
    world.migrate(inbox, claims_only=True)
    old = datetime.now(UTC) - timedelta(days=2)
    raised: list[BaseException] = []

    def claim(many: bool) -> None:
        with psycopg.connect(world.url) as other:
            try:
                inbox.claim(other, "a", produced_at=old)
            except TooLate as error:
                raised.append(error)

    with psycopg.connect(world.url) as one, psycopg.connect(world.url) as purge:
        assert inbox.claim(one, "a", produced_at=old)
        one.commit()
        purge.execute("DELETE FROM oncebox_inbox")
        thread = threading.Thread(target=claim, args=(False,))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it waits for the purge"
        one.execute("INSERT INTO oncebox_consumer VALUES ('billing', now())")
        one.commit()
        purge.commit()
        thread.join(10)
    assert len(raised) == 1
    assert ids(world) == []


@pytest.mark.only(("psycopg",))
def test_a_snapshot_is_refused(world: World) -> None:
    inbox: Inbox = world.inbox(migrate=False)
    world.migrate(inbox, claims_only=True)
    with psycopg.connect(world.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(SnapshotRisk):
            inbox.claim(connection, "a")
        with pytest.raises(SnapshotRisk):
            inbox.claim_many(connection, ["a", "b"])
        assert inbox.claim_many(connection, ["a", "b"], accept_retries=True) == [True, True]


@pytest.mark.only(("psycopg",))
def test_a_role_with_the_grants_for_claims_can_claim(world: World) -> None:
    inbox = world.inbox(migrate=False)
    world.migrate(inbox, claims_only=True)
    world.execute(
        "DO $$ BEGIN CREATE ROLE claimer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
    )
    for statement in inbox.sql(claims_only=True, grants_to="claimer").splitlines():
        world.execute(statement)
    with psycopg.connect(world.url.replace("postgres@", "claimer@")) as connection:
        assert inbox.claim(connection, "a", payload=b"one") is True
        assert inbox.claim(connection, "a") is False
        assert inbox.claim_many(connection, ["a", "b"]) == [False, True]
        with pytest.raises(PayloadMismatch):
            inbox.claim(connection, "a", payload=b"two")
