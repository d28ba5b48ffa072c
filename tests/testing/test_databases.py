"""TemporaryDatabase and use_database(): the inbox of an application, on a database of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from oncebox import (
    AsyncTransaction,
    Gaps,
    Inbox,
    Json,
    Ordering,
    Retention,
    Retry,
    SqlAlchemy,
    Transaction,
)
from oncebox.errors import ConfigurationError, HandlerError, OnceboxError
from oncebox.testing import (
    TemporaryDatabase,
    adeliver,
    assert_kinds,
    deliver,
    event,
    use_database,
)
from support.django_settings import add_database

INSERT = "insert into invoices values (:id)"
TABLE = "create table invoices (id text)"
AT_ONCE = Retry(initial_delay=timedelta(0))


@pytest.fixture
def application(tmp_path: Path) -> Inbox:
    """The inbox of an application, as its module defines it; nothing may open its database."""
    return Inbox("billing", f"sqlite:///{tmp_path}/missing/production.db")


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """The server of a temporary database."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


def create_invoice(order: dict[str, Any], tx: Transaction) -> None:
    tx.execute(INSERT, id=order["id"])


async def acreate_invoice(order: dict[str, Any], tx: AsyncTransaction) -> None:
    await tx.execute(INSERT, id=order["id"])


def check_outcomes(database: TemporaryDatabase, kinds: Any) -> None:
    assert_kinds(kinds, done=1, duplicate=2)
    assert database.execute("select * from invoices") == [("o-1",)]


def test_the_inbox_of_an_application_works_on_a_temporary_database(
    application: Inbox, server: str | None
) -> None:
    application.on("order")(create_invoice)
    with TemporaryDatabase(application, server) as database:
        database.execute(TABLE)
        order = event(application, "order", {"id": "o-1"})
        check_outcomes(database, deliver(application, order, copies=3))
        assert len(application.messages.find()) == 1


def test_an_async_inbox_works_on_a_temporary_database(
    application: Inbox, server: str | None
) -> None:
    application.on("order")(acreate_invoice)

    async def run() -> None:
        async with TemporaryDatabase(application, server) as database:
            database.execute(TABLE)
            order = event(application, "order", {"id": "o-1"})
            check_outcomes(database, await adeliver(application, order, copies=3))

    asyncio.run(run())


def test_two_blocks_have_two_databases(application: Inbox, server: str | None) -> None:
    application.on("order")(lambda order: None)
    urls = set()
    for _ in range(2):
        with TemporaryDatabase(application, server) as database:
            urls.add(database.url)
            assert_kinds(deliver(application, event(application, "order", id="e-1")), done=1)
    assert len(urls) == 2


def test_nothing_is_left_after_the_block(application: Inbox, postgres_url: str) -> None:
    before = dict(vars(application))
    with pytest.raises(KeyError), TemporaryDatabase(application) as database:
        path = Path(database.url.removeprefix("sqlite:///"))
        assert path.exists()
        raise KeyError
    assert not path.parent.exists()
    with TemporaryDatabase(application, postgres_url) as database:
        name = database.url.rpartition("/")[2]
    with psycopg.connect(postgres_url) as connection:
        query = "select count(*) from pg_database where datname = %s"
        assert connection.execute(query, [name]).fetchone() == (0,)
    assert vars(application) == before


def test_nothing_is_left_if_the_tables_cannot_be_made(application: Inbox, tmp_path: Path) -> None:
    before = dict(vars(application))
    with (
        pytest.raises(ConfigurationError, match="cannot open"),
        TemporaryDatabase(application, folder=tmp_path / "missing"),
    ):
        pytest.fail("the folder does not exist")
    assert vars(application) == before


OPTIONS: dict[str, Any] = {
    "identity": Json("id", type="type"),
    "retry": Retry(max_attempts=3),
    "ordering": Ordering.skip_dead,
    "pipeline": False,
    "notify": True,
    "unknown_type": "ignore",
    "on_dead": "log",
    "keep_payload": False,
    "payload_limit": 7,
    "transaction_timeout": timedelta(seconds=9),
    "retention": Retention(days=3),
    "gaps": Gaps(then="hold"),
    "prefix": "inbox_",
    "schema": "mine",
}


def test_every_option_of_the_inbox_is_kept(postgres_url: str) -> None:
    inbox = Inbox("billing", postgres_url, **OPTIONS)
    with use_database(inbox, "postgresql://localhost/other"):
        found = dict(inbox._arguments)
    assert found == {"name": "billing", "database": "postgresql://localhost/other", **OPTIONS}


def test_handlers_upcasters_and_ignored_types_are_kept(application: Inbox) -> None:
    seen: list[Any] = []
    application.on("order", version=2)(seen.append)
    application.upcast("order", from_version=1)(lambda old: {**old, "upcast": True})
    application.ignore("audit.*")
    with TemporaryDatabase(application) as _:
        given = [event(application, type, {}) for type in ("order", "audit.login", "other")]
        assert_kinds(deliver(application, *given), done=1, ignored=1, dead=1)
    assert seen == [{"upcast": True}]


def test_a_reference_from_before_the_block_uses_its_database(application: Inbox) -> None:
    application.on("order.confirmed")(create_invoice)
    messages, dead_letters = application.messages, application.dead_letters
    for _ in range(2):
        with TemporaryDatabase(application) as database:
            database.execute(TABLE)
            deliver(application, event(application, "order.confirmed", {"id": "o-1"}, id="e-1"))
            deliver(application, event(application, "unknown", {}))
            assert [found.message_id for found in messages.find(state="done")] == ["e-1"]
            assert [letter.type for letter in dead_letters.find()] == ["unknown"]
    with pytest.raises(OnceboxError):  # the folder of the application's own database is missing
        messages.find()


def test_hooks_of_dead_letters_are_not_called(application: Inbox) -> None:
    seen: list[Any] = []
    loud = Inbox("loud", "sqlite:///missing/loud.db", on_dead=lambda letter: seen.append("loud"))
    loud.on("order")(lambda order: None)
    quiet, called = TemporaryDatabase(loud), TemporaryDatabase(loud, on_dead=seen.append)
    for database in (quiet, called):
        with database:
            deliver(loud, event(loud, "unknown", {}))
            loud.drain()
    assert [letter.type for letter in seen] == ["unknown"]


def test_a_server_may_be_named_by_a_socket_or_a_parameter(
    application: Inbox, postgres_url: str
) -> None:
    application.on("order.confirmed")(create_invoice)
    parts = urlsplit(postgres_url)
    local = f"postgresql:///postgres?host={parts.hostname}&port={parts.port}&user=postgres"
    for server in (f"{postgres_url}?dbname=postgres", local):
        with TemporaryDatabase(application, server) as database:
            tables = database.execute("SELECT current_database()")
            assert tables[0][0].startswith("oncebox_test_")
            assert len(application.messages.find()) == 0


def test_a_database_without_its_block_is_explained(application: Inbox) -> None:
    database = TemporaryDatabase(application)
    with pytest.raises(ConfigurationError, match="write `with TemporaryDatabase"):
        database.execute("SELECT 1")
    with database:
        assert database.url.startswith("sqlite:///")


def test_a_sync_inbox_needs_with(application: Inbox) -> None:
    application.on("order.confirmed")(create_invoice)

    async def enter() -> None:
        async with TemporaryDatabase(application):
            raise AssertionError

    with pytest.raises(ConfigurationError, match="this inbox is sync: use with"):
        asyncio.run(enter())


def test_hooks_are_kept_and_those_of_the_block_are_gone_after_it(application: Inbox) -> None:
    seen: list[str] = []
    application.on("order.confirmed")(create_invoice)

    @application.around
    def outer(tx: Transaction) -> Iterator[None]:
        seen.append("outer")
        yield

    for _ in range(2):
        with TemporaryDatabase(application) as database:
            database.execute(TABLE)

            @application.around
            def inner(tx: Transaction) -> Iterator[None]:
                seen.append("inner")
                yield

            confirmed = event(application, "order.confirmed", {"id": "o-1"})
            assert_kinds(deliver(application, confirmed), done=1)
    assert seen == ["outer", "inner"] * 2


def test_a_handler_of_the_block_is_gone_after_it(application: Inbox) -> None:
    with TemporaryDatabase(application):
        application.on("order")(lambda order: None)
    with (
        TemporaryDatabase(application),
        pytest.raises(ConfigurationError, match="has no handlers"),
    ):
        deliver(application, event(application, "order"))


def fail(order: dict[str, Any]) -> None:
    raise ValueError("broken")


def attempts(inbox: Inbox, **options: Any) -> int:
    """How often an order runs until it is dead or not due."""
    runs = 0

    @inbox.on("order")
    def handle(order: dict[str, Any]) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("broken")

    with TemporaryDatabase(inbox, **options):
        deliver(inbox, event(inbox, "order", {}))
        inbox.drain()
    return runs


def test_options_of_the_block_replace_those_of_the_inbox(application: Inbox) -> None:
    retry = Retry(max_attempts=4, initial_delay=timedelta(0))
    assert attempts(application, retry=retry) == 4


def test_an_option_of_a_handler_stays(application: Inbox) -> None:
    application.on("order", retry=Retry(max_attempts=1))(fail)
    with TemporaryDatabase(application, retry=AT_ONCE):
        assert_kinds(deliver(application, event(application, "order", {})), dead=1)


def test_an_engine_of_the_test_replaces_the_database(application: Inbox, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/engine.db")
    application.on("order")(create_invoice)
    with use_database(application, engine):
        application.migrate()
        with engine.begin() as connection:
            connection.execute(sa.text(TABLE))
        assert_kinds(deliver(application, event(application, "order", {"id": "o-1"})), done=1)
        application.close()
    engine.dispose()


@pytest.mark.parametrize("scheme", ["sqlite+pysqlite", "sqlite+aiosqlite"])
def test_the_driver_of_a_sqlite_url_stays(scheme: str, tmp_path: Path) -> None:
    inbox = Inbox("billing", f"{scheme}:///{tmp_path}/missing/production.db")
    database = TemporaryDatabase(inbox)
    if scheme.endswith("aiosqlite"):
        asyncio.run(_entered(database))
    else:
        with database:
            pass
    assert database.url.startswith(f"{scheme}:///")


async def _entered(database: TemporaryDatabase) -> None:
    async with database:
        assert database.execute("select 1") == [(1,)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_the_driver_of_a_server_stays(driver: str, application: Inbox, postgres_url: str) -> None:
    server = postgres_url.replace("postgresql://", f"postgresql+{driver}://")
    database = TemporaryDatabase(application, server)
    asyncio.run(_entered(database))
    assert database.url.startswith(f"postgresql+{driver}://")


def test_an_async_inbox_needs_async_with(application: Inbox) -> None:
    application.on("order")(acreate_invoice)
    before = dict(vars(application))
    with (
        pytest.raises(ConfigurationError, match="this inbox is async: use async with"),
        TemporaryDatabase(application),
    ):
        pytest.fail("entered")
    assert vars(application) == before


Make = Callable[[Inbox], Any]
MISTAKES: list[tuple[Make, str]] = [
    (lambda inbox: TemporaryDatabase(inbox, "sqlite:///x.db"), "URL of a PostgreSQL server, got"),
    (lambda inbox: use_database(inbox, "mysql://localhost"), "unknown database URL scheme"),
    (lambda inbox: TemporaryDatabase(inbox, retries=3), "unknown option 'retries', did you mean"),
]


@pytest.mark.parametrize(("make", "error"), MISTAKES)
def test_a_mistake_is_explained(make: Make, error: str, application: Inbox) -> None:
    with pytest.raises(ConfigurationError, match=error), make(application):
        pytest.fail("entered")


def test_async_handlers_cannot_move_to_a_sync_database(application: Inbox) -> None:
    application.on("order")(acreate_invoice)
    database = SqlAlchemy(sa.create_engine("sqlite://"))
    with (
        pytest.raises(HandlerError, match="all of an inbox must be"),
        use_database(application, database),
    ):
        pytest.fail("entered")


def test_an_inbox_on_django_is_refused() -> None:
    django = pytest.importorskip("oncebox.storage.drivers.django.database").DjangoDatabase
    alias, remove = add_database("sqlite:///:memory:")
    inbox = Inbox("billing", django(alias))
    with (
        pytest.raises(ConfigurationError, match=r"uses Django\(\): use django\.test\.TestCase"),
        TemporaryDatabase(inbox),
    ):
        pytest.fail("entered")
    with use_database(Inbox("billing", "sqlite:///x.db"), django(alias)):
        pass
    remove()
