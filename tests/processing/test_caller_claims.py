"""claim(): claim a message inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncebox import Message
from oncebox.errors import (
    ClaimError,
    ConfigurationError,
    MissingId,
    NotInTransaction,
    PayloadMismatch,
    SchemaMissing,
    SnapshotRisk,
    TooLate,
)
from support.callers import Caller, connected
from support.worlds import ALL, BOTH, SQLALCHEMY, World, order, write_effect


@pytest.fixture
def caller(world: World) -> Iterator[Caller]:
    yield from connected(Caller(world, world.inbox()))


def ids(world: World) -> list[str]:
    return sorted(row[0] for row in world.query("SELECT message_id FROM oncebox_inbox"))


@pytest.mark.only(ALL, quick=ALL)
def test_a_claim_is_new_once(caller: Caller) -> None:
    assert caller.claim("a") is True
    assert caller.claim("a") is False
    caller.commit()
    caller.world.name in SQLALCHEMY and caller.call(caller.connection.begin())
    assert caller.claim("a") is False
    assert ids(caller.world) == ["a"]


def test_a_rollback_undoes_the_claim(caller: Caller) -> None:
    assert caller.claim("a") is True
    caller.rollback()
    caller.world.name in SQLALCHEMY and caller.call(caller.connection.begin())
    assert caller.claim("a") is True


def test_many_messages_are_claimed_in_one_call(caller: Caller) -> None:
    assert caller.claim("b") is True
    assert caller.claim_many(["c", "b", "a", "c"]) == [True, False, True, False]
    assert caller.claim_many([]) == []
    other = Message("a", b"", origin="elsewhere", type="order", key="k")
    assert caller.claim_many([other]) == [True]
    caller.commit()
    assert ids(caller.world) == ["a", "a", "b", "c"]


def test_the_same_id_with_other_bytes_is_refused_and_stores_nothing(caller: Caller) -> None:
    assert caller.claim("a", payload=b"one") is True
    assert caller.claim("a", payload=b"one") is False
    assert caller.claim("a") is False, "without a payload there is nothing to compare"
    with pytest.raises(PayloadMismatch, match="'a' of 'default' was claimed before"):
        caller.claim("a", payload=b"two")
    changed = Message("a", b"", content_hash=b"x" * 16)
    with pytest.raises(PayloadMismatch):
        caller.claim_many([Message("new", b""), changed])
    assert caller.claim("b") is True, "the transaction goes on"
    caller.commit()
    assert ids(caller.world) == ["a", "b"]


def test_a_claim_older_than_the_watermark_is_refused_and_stores_nothing(caller: Caller) -> None:
    world, now = caller.world, datetime.now(UTC)
    mark = now if world.is_postgres else int(now.timestamp() * 1_000_000)
    statement = "INSERT INTO oncebox_consumer (consumer, purged_before) VALUES ('billing', %s)"
    if world.name == "django-sqlite":  # whose transaction holds the write lock
        caller.connection.cursor().execute(statement, [mark])
    else:
        world.execute(statement, mark)
    with pytest.raises(TooLate, match="nothing was stored"):
        caller.claim("old", produced_at=now - timedelta(days=1))
    assert caller.claim("new", produced_at=now + timedelta(days=1)) is True
    assert caller.claim("undated") is True
    caller.commit()
    assert ids(world) == ["new", "undated"]


def test_ids_that_differ_in_case_or_spaces_are_different(caller: Caller) -> None:
    assert caller.claim_many(["abc", "ABC", "abc ", "äbc"]) == [True] * 4
    caller.commit()


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("id", ["", "x" * 256, "a\0b", "\ud800", None])
def test_an_id_that_cannot_be_one_is_refused(caller: Caller, id: Any) -> None:
    with pytest.raises(MissingId) as caught:
        caller.claim(id)
    assert "identity=" not in str(caught.value)
    if not id:
        assert str(caught.value).startswith("the id is empty: pass the one that")


def test_a_uuid_is_an_id(caller: Caller) -> None:
    id = uuid.uuid4()
    assert caller.claim(id) is True
    assert caller.claim(str(id)) is False
    assert caller.claim_many([id, uuid.uuid4()]) == [False, True]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("payload", [{"a": 1}, "text", 7, [b"a"]])
def test_a_payload_that_is_not_bytes_is_refused_with_advice(caller: Caller, payload: Any) -> None:
    with pytest.raises(ClaimError, match=f"payload must be bytes, got {type(payload).__name__}"):
        caller.claim("a", payload=payload)
    assert caller.claim("a", payload=bytearray(b"x")) is True
    assert caller.claim("a", payload=b"x") is False


@pytest.mark.only(BOTH)
def test_characters_that_no_database_stores_are_escaped_in_a_claim(caller: Caller) -> None:
    headers = {"x-death": [{"count": 1}], "raw": b"\xff", "nul": "\0"}
    assert caller.claim("a", headers=headers, source="\0", coordinates="\ud800") is True
    assert caller.claim_many([Message("b", b"", headers={"n": 1})]) == [True]  # type: ignore[dict-item]
    caller.commit()
    found = caller.world.query("SELECT source, coordinates FROM oncebox_inbox ORDER BY seq")
    assert found[0] == ("\\0", "\\ud800")


@pytest.mark.empty_database
def test_a_claim_without_tables_names_the_command_to_run(world: World) -> None:
    inbox = world.inbox(migrate=False)
    for caller in connected(Caller(world, inbox)):
        with pytest.raises(SchemaMissing, match=r"inbox\.migrate\(\)"):
            caller.claim("a")
        if not world.name.startswith("django"):
            caller.rollback()


def test_an_unknown_connection_is_refused(world: World) -> None:
    caller = Caller(world, world.inbox())
    caller.connection = object()
    with pytest.raises(ConfigurationError, match="not object"):
        caller.claim("a")


# -- connections in autocommit mode, and snapshots ------------------------------------------------


@pytest.mark.only(("psycopg", "psycopg-async"))
def test_psycopg_in_autocommit_mode_is_refused(caller: Caller) -> None:
    caller.call(caller.connection.set_autocommit(True)) if caller.world.is_async else setattr(
        caller.connection, "autocommit", True
    )
    with pytest.raises(NotInTransaction):
        caller.claim("a")
    assert ids(caller.world) == []


@pytest.mark.only(("psycopg",))
def test_psycopg_in_a_transaction_block_is_accepted_in_autocommit_mode(caller: Caller) -> None:
    caller.connection.autocommit = True
    with caller.connection.transaction():
        assert caller.claim("a") is True
    with caller.connection.pipeline():
        caller.connection.execute("SELECT 1")
        with pytest.raises(NotInTransaction):
            caller.claim("b")
    assert ids(caller.world) == ["a"]


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("options", [{"isolation_level": None}, {"autocommit": True}])
def test_sqlite_in_autocommit_mode_is_refused(world: World, options: dict[str, Any]) -> None:
    inbox = world.inbox()
    try:
        connection = sqlite3.connect(world.url.removeprefix("sqlite:///"), **options)
    except TypeError:
        pytest.skip("new in Python 3.12")
    with pytest.raises(NotInTransaction):
        inbox.claim(connection, "a")
    connection.execute("BEGIN")
    assert inbox.claim(connection, "a") is True
    connection.close()


@pytest.mark.only(("aiosqlite",))
@pytest.mark.parametrize("options", [{"isolation_level": None}, {"autocommit": True}])
def test_aiosqlite_in_autocommit_mode_is_refused(world: World, options: dict[str, Any]) -> None:
    import aiosqlite

    inbox = world.inbox()

    async def claim() -> None:
        path = world.url.removeprefix("sqlite:///")
        async with aiosqlite.connect(path, **options) as connection:
            with pytest.raises(NotInTransaction):
                await inbox.aclaim(connection, "a")

    if "autocommit" in options and not hasattr(sqlite3.Connection, "autocommit"):
        pytest.skip("new in Python 3.12")
    world.run(claim())
    assert ids(world) == []


@pytest.mark.only(SQLALCHEMY)
def test_sqlalchemy_in_autocommit_mode_is_refused(world: World) -> None:
    inbox = world.inbox()
    caller = Caller(world, inbox)
    engine = world.database().execution_options(isolation_level="AUTOCOMMIT")
    caller.connection = caller.call(engine.connect())
    caller.call(caller.connection.begin())
    with pytest.raises(NotInTransaction):
        caller.claim("a")
    caller.call(caller.connection.close())
    caller.connection = caller.call(world.database().connect())
    with pytest.raises(NotInTransaction, match=r"connection\.begin"):
        caller.claim("a")
    caller.call(caller.connection.close())
    assert ids(world) == []


@pytest.mark.only(("django-postgres", "django-sqlite"))
def test_django_outside_atomic_is_refused(world: World) -> None:
    inbox = world.inbox()
    from django.db import connections

    with pytest.raises(NotInTransaction, match=r"transaction\.atomic"):
        inbox.claim(connections[world.database().alias], "a")


@pytest.mark.only(SQLALCHEMY)
def test_a_session_is_a_connection_too(world: World) -> None:
    inbox = world.inbox()

    async def asynchronous() -> list[bool]:
        async with AsyncSession(world.database()) as session, session.begin():
            await session.execute(text("SELECT 1"))
            return [await inbox.aclaim(session, "a"), await inbox.aclaim(session, "a")]

    if world.is_async:
        assert world.run(asynchronous()) == [True, False]
    else:
        with Session(world.database()) as session, session.begin():
            session.execute(text("SELECT 1"))
            assert [inbox.claim(session, "a"), inbox.claim(session, "a")] == [True, False]
    assert ids(world) == ["a"]


@pytest.mark.only(("psycopg", "psycopg-async", "sqlalchemy-psycopg", "django-postgres"))
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_is_refused_unless_retries_are_accepted(caller: Caller, level: str) -> None:
    statement = f"SET TRANSACTION ISOLATION LEVEL {level}"
    if caller.world.name.startswith("django"):
        caller.connection.cursor().execute(statement)
    elif caller.world.name in SQLALCHEMY:
        caller.call(caller.connection.exec_driver_sql(statement))
    else:
        caller.call(caller.connection.execute(statement))
    with pytest.raises(SnapshotRisk, match="accept_retries"):
        caller.claim("a")
    assert caller.claim("a", accept_retries=True) is True


@pytest.mark.only(("sqlite3", "aiosqlite", "sqlalchemy-pysqlite"))
def test_a_stale_snapshot_on_sqlite_is_a_conflict(caller: Caller) -> None:
    caller.world.execute("PRAGMA journal_mode=WAL")
    if caller.world.name in SQLALCHEMY:
        caller.call(caller.connection.exec_driver_sql("BEGIN"))
        caller.call(caller.connection.exec_driver_sql("SELECT * FROM effects"))
    else:
        caller.call(caller.connection.execute("BEGIN"))
        cursor = caller.call(caller.connection.execute("SELECT * FROM effects"))
        caller.call(cursor.fetchall())
    caller.world.execute("INSERT INTO effects VALUES ('x', '')")
    with pytest.raises(SnapshotRisk, match="roll back and retry the transaction"):
        caller.claim("a")


@pytest.mark.only([name for name in ALL if not name.startswith("django")])
def test_claim_and_process_see_each_other(caller: Caller) -> None:
    world = caller.world
    world.on(caller.inbox, "order", write_effect)
    assert caller.claim("a", origin="test") is True
    caller.commit()
    assert world.kinds(caller.inbox, [order("a"), order("b")]) == ["duplicate", "done"]


@pytest.mark.only([name for name in ALL if not name.startswith("django")])
def test_a_sync_claim_on_an_async_connection_is_refused_before_it_writes(caller: Caller) -> None:
    with pytest.raises(ConfigurationError, match=r"use (await )?inbox\.a?claim"):
        if caller.world.is_async:
            caller.inbox.claim(caller.connection, "a")
        else:
            asyncio.run(caller.inbox.aclaim(caller.connection, "a"))
    caller.rollback()
    assert ids(caller.world) == []
