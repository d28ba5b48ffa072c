"""Settings of users: row factories, transaction modes, connections and mistakes."""

from __future__ import annotations

import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row, namedtuple_row

from oncebox import Delivery, Inbox, Message, Ordering, Reject, Retry, RetryAfter
from oncebox.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    HandlerError,
    MissingId,
    OnceboxError,
    PayloadMismatch,
)
from oncebox.model.identity.rules import BusinessKey
from support.internals import make_database, replace_database
from support.worlds import ASYNC, World, order, write_effect

pytestmark = pytest.mark.empty_database


def test_a_batch_without_a_single_identity_is_quarantined(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [Delivery(b"garbage")]) == ["quarantined"]
    assert world.kinds(inbox, [order("a"), Delivery(b"garbage")]) == ["done", "quarantined"]


def test_a_batch_of_ignored_types_is_acked(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    inbox.ignore("noise.*")
    assert world.kinds(inbox, [order("a", type="noise.loud")]) == ["ignored"]


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
def test_a_row_factory_of_the_user_does_not_break_claims(world: World, factory: Any) -> None:
    inbox = world.inbox()
    with psycopg.connect(world.url, row_factory=factory) as connection:
        assert [inbox.claim(connection, "a"), inbox.claim(connection, "a")] == [True, False]
    options = {"row_factory": factory, "cursor_factory": psycopg.ClientCursor}
    with psycopg_pool.ConnectionPool(world.url, kwargs=options, min_size=1) as pool:
        pooled = Inbox("billing", pool)
        seen: list[Any] = []

        @pooled.on("order")
        def look(payload: dict[str, Any], tx: Any) -> None:
            seen.append(tx.execute("SELECT :n::int", n=7).one())

        assert pooled.process([order("b"), order("b")])[0].kind == "done"
        assert seen == [(7,)]


@pytest.mark.only(("sqlite3",))
def test_a_row_factory_of_sqlite_does_not_break_claims(world: World) -> None:
    inbox = world.inbox()
    connection = sqlite3.connect(world.url.removeprefix("sqlite:///"))
    for factory in (sqlite3.Row, lambda cursor, row: {"x": row}):
        connection.row_factory = factory
        name = str(factory)[:20]
        assert [inbox.claim(connection, name), inbox.claim(connection, name)] == [True, False]
    connection.close()


@pytest.mark.only(("psycopg",))
def test_one_message_given_twice_is_claimed_once(world: World) -> None:
    inbox = world.inbox()
    message = Message("m", b"x")
    with psycopg.connect(world.url) as connection:
        assert inbox.claim_many(connection, [message, message, "n"]) == [True, False, True]
        with pytest.raises(MissingId):
            inbox.claim_many(connection, [Message("", b"")])
        one = Message("z", b"1", content_hash=b"1" * 16)
        two = Message("z", b"2", content_hash=b"2" * 16)
        with pytest.raises(PayloadMismatch):
            inbox.claim_many(connection, [one, two])
        click = BusinessKey("id", across_types=True)(Delivery(b'{"id": 1, "click": 1}'))
        again = BusinessKey("id", across_types=True)(Delivery(b'{"id": 1, "click": 2}'))
        assert inbox.claim_many(connection, [click, again]) == [True, False]


@pytest.mark.only(("django-postgres", "django-sqlite"))
def test_django_without_autocommit_is_refused(world: World) -> None:
    """Its atomic blocks would not commit, and the outcomes would lie."""
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    from django.db import connections

    connection = connections[world.database().alias]
    connection.settings_dict["AUTOCOMMIT"] = False
    connection.close()
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        inbox.process([order("a")])
    connection.settings_dict["AUTOCOMMIT"] = True
    connection.close()
    assert world.kinds(inbox, [order("a")]) == ["done"]


@pytest.mark.only(("django-postgres", "django-sqlite"))
def test_a_refused_process_does_not_touch_the_callers_transaction(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    from django.db import connections, transaction

    alias = world.database().alias
    world.process(inbox, [order("a")])
    insert = "INSERT INTO accounts VALUES (%s, 1)"
    with pytest.raises(KeyError), transaction.atomic(using=alias):
        connections[alias].cursor().execute(insert, ["before"])
        with pytest.raises(ConfigurationError, match="cannot run inside"):
            inbox.process([order("b")])
        connections[alias].cursor().execute(insert, ["after"])
        raise KeyError
    assert world.query("SELECT count(*) FROM accounts") == [(0,)]


@pytest.mark.only(("django-postgres",))
def test_django_handlers_may_compose_their_sql(world: World) -> None:
    inbox = world.inbox()

    @inbox.on("order")
    def compose(payload: dict[str, Any], tx: Any) -> None:
        tx.connection.cursor().execute(psycopg.sql.SQL("SELECT {}").format(7))

    assert world.kinds(inbox, [order("a")]) == ["done"]


@pytest.mark.only(("sqlalchemy-psycopg", "sqlalchemy-asyncpg", "sqlalchemy-psycopg-async"))
def test_an_engine_without_transactions_is_refused(world: World) -> None:
    world.inbox()
    world.use_database(world.database().execution_options(isolation_level="AUTOCOMMIT"))
    broken = world.inbox(migrate=False)
    world.on(broken, "order", write_effect)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        world.process(broken, [order("a")])
    assert world.states() == {}


def test_a_handler_that_returns_a_coroutine_or_generator_fails(world: World) -> None:
    """A decorator that is not aware of async would drop the work and report success."""

    async def work() -> None:
        raise AssertionError("this must not run")

    def forget(payload: dict[str, Any], tx: Any) -> Any:
        return work() if payload["id"] == "bad" else None

    inbox = world.inbox()
    if world.is_async:

        @inbox.on("order")
        async def forget_async(payload: dict[str, Any], tx: Any) -> Any:
            return forget(payload, tx)
    else:
        inbox.on("order")(forget)
    outcomes = world.process(inbox, [order("a"), order("bad")])
    assert [outcome.kind.value for outcome in outcomes] == ["done", "failed"]
    assert "returned a coroutine, which does not run" in str(outcomes[1].error)


@pytest.mark.only(("sqlite3",))
def test_the_ordering_of_a_handler_may_be_given_as_text(world: World) -> None:
    inbox = world.inbox(ordering=Ordering.skip_dead)

    @inbox.on("order", ordering="strict")  # type: ignore[call-overload,untyped-decorator]
    def reject(payload: dict[str, Any]) -> None:
        raise Reject

    assert world.kinds(inbox, [order("a", key="k"), order("b", key="k")]) == ["dead", "blocked"]
    for options in ({"ordering": "blocks_key"}, {"retry": 5}):
        with pytest.raises(ConfigurationError):
            inbox.on("other", **options)(lambda payload: None)
        with pytest.raises(ConfigurationError):
            Inbox("billing", world.url, **options)


@pytest.mark.only(ASYNC)
def test_a_missing_await_fails_the_message(world: World) -> None:
    """Nothing was executed, and without this the message would be done."""
    inbox = world.inbox()

    @inbox.on("order")
    async def forget(payload: dict[str, Any], tx: Any) -> None:
        await tx.execute("INSERT INTO effects VALUES (:id, '')", id=payload["id"])
        if payload["id"] == "bad":
            tx.execute("INSERT INTO effects VALUES ('forgotten', '')")

    outcomes = world.process(inbox, [order("a"), order("bad")])
    assert [outcome.kind.value for outcome in outcomes] == ["done", "failed"]
    assert "did not await tx.execute()" in str(outcomes[1].error)
    assert world.effects() == ["a"]


@pytest.mark.only(("sqlite3",))
def test_a_handler_for_a_type_overrides_an_ignored_pattern(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "shop.order", write_effect)
    inbox.ignore("shop.*")
    batch = [order("a", type="shop.order"), order("b", type="shop.noise")]
    assert world.kinds(inbox, batch) == ["done", "ignored"]
    with pytest.raises(HandlerError, match="patterns are for ignore"):
        inbox.on("shop.*")(lambda payload: None)
    with pytest.raises(HandlerError, match="needs a message type"):
        inbox.on(lambda payload: None)  # type: ignore[call-overload]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_parameters_are_given_by_name(world: World) -> None:
    inbox = world.inbox()

    @inbox.on("order")
    def positional(payload: dict[str, Any], tx: Any) -> None:
        tx.execute("SELECT :x", {"x": 1})

    (outcome,) = world.process(inbox, [order("a")])
    assert "pass parameters by name" in str(outcome.error)


@pytest.mark.only(("psycopg",))
def test_several_ids_must_be_a_list(world: World) -> None:
    with psycopg.connect(world.url) as connection:
        with pytest.raises(OnceboxError, match="a list of ids"):
            world.inbox().claim_many(connection, "abc")


def test_delays_are_timedeltas() -> None:
    with pytest.raises(ConfigurationError, match="RetryAfter takes a timedelta"):
        RetryAfter(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="initial_delay must be a timedelta"):
        Retry(initial_delay=5)  # type: ignore[arg-type]


@pytest.mark.only(("psycopg", "psycopg-async"))
def test_the_error_says_why_there_is_no_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.use_database(world.url.rpartition("/")[0] + "/no_such_database")
    inbox = world.inbox(migrate=False)
    database = make_database(inbox, is_async=world.is_async)
    database.pool.timeout = 0.2
    replace_database(monkeypatch, inbox, database)
    world.on(inbox, "order", write_effect)
    with pytest.raises(DatabaseUnavailable, match='"no_such_database" does not exist'):
        world.process(inbox, [order("a")])


@pytest.mark.only(("django-sqlite", "django-postgres"))
def test_djangos_migration_accepts_tables_that_are_there(world: World) -> None:
    world.inbox()
    from django.core.management import call_command

    call_command("migrate", "oncebox", database=world.database().alias, verbosity=0)


def test_headers_without_a_value_are_kept(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    delivery = order("a")
    with_headers = Delivery(delivery.body, {"empty": None, "full": "x"})
    assert world.kinds(inbox, [with_headers]) == ["done"]


@pytest.mark.parametrize(
    ("delivery", "remedy"),
    [
        (Delivery("text"), "encode it"),  # type: ignore[arg-type]
        (Delivery(b"", [("a", b"b")]), "dict"),  # type: ignore[arg-type]
        (Delivery(b"", timestamp=1700000000), "datetime"),  # type: ignore[arg-type]
        (Delivery(b"", coordinates=7), "10427"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_configuration_is_an_error_and_not_a_bad_message(
    delivery: Delivery, remedy: str
) -> None:
    inbox = Inbox("billing", "sqlite:///x.db")
    inbox.on("order")(lambda payload: None)
    with pytest.raises(OnceboxError, match=remedy):
        inbox.process([delivery])


@pytest.mark.only(("sqlite3", "aiosqlite"))
def test_processing_inside_a_handler_on_its_own_file_is_refused(world: World) -> None:
    """It would wait for itself."""
    outer, inner = world.inbox("outer"), world.inbox("inner")
    world.on(inner, "order", write_effect)

    async def nested_async(payload: dict[str, Any], tx: Any) -> None:
        await inner.aprocess([order("b")])

    def nested(payload: dict[str, Any], tx: Any) -> None:
        inner.process([order("b")])

    outer.on("order")(nested_async if world.is_async else nested)
    (outcome,) = world.process(outer, [order("a")])
    assert "it would wait forever" in str(outcome.error)
    assert world.kinds(inner, [order("b")]) == ["done"]


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-psycopg"))
def test_an_object_that_is_not_a_connection_is_refused(world: World) -> None:
    inbox = world.inbox()
    with pytest.raises(ConfigurationError, match=r"take a connection"):
        inbox.claim(world.database(), "a")


@pytest.mark.only(("sqlite3",))
def test_a_naive_time_is_taken_for_utc(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    noon = datetime(2026, 1, 2, 12)
    delivery = order("a")
    world.process(inbox, [Delivery(delivery.body, timestamp=noon)])
    microseconds = int(noon.replace(tzinfo=UTC).timestamp() * 1_000_000)
    assert world.query("SELECT produced_at FROM oncebox_inbox") == [(microseconds,)]


@pytest.mark.only(("sqlite3", "psycopg"))
def test_outcomes_that_need_attention_are_logged_without_values(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = world.inbox()

    def fail(payload: dict[str, Any]) -> None:
        raise ValueError("secret")

    world.on(inbox, "order", fail, retry=Retry(initial_delay=timedelta(seconds=4), jitter=0))
    with caplog.at_level(logging.WARNING, "oncebox"):
        world.process(inbox, [order("a"), Delivery(b"secret")])
    assert [record.message for record in caplog.records] == [
        "billing: message 'a' of type 'order' failed and is stored for another attempt "
        "(attempt 1, ValueError, next attempt in 4 s); see: oncebox show APP a",
        "billing: a delivery is quarantined (missing_id); see: oncebox dead-letters APP",
    ]


def test_a_missing_driver_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(ConfigurationError, match="psycopg2 is not installed: pip install psycopg2"):
        Inbox("billing", "postgresql+psycopg2://localhost/x")
