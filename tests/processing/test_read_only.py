"""A read-only server is an outage, and fails no message."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import psycopg_pool
import pytest
import sqlalchemy

import oncebox.services.loop
from oncebox import Consumer, Inbox, Worker
from oncebox.brokers.file import FileSource
from oncebox.errors import DatabaseUnavailable
from oncebox.services.loop import READ_ONLY, Loop
from support.services import wait_until
from support.services.postgres import Postgres
from support.worlds import ON_POSTGRES, World, order, write_effect

pytestmark = pytest.mark.only(
    ON_POSTGRES, quick=("psycopg", "sqlalchemy-asyncpg", "django-postgres")
)

WRITABLE = "-c default_transaction_read_only=off"
LOOPS = ("psycopg", "sqlalchemy-psycopg", "django-postgres")


class Server:
    """The server of a world, as far as it takes writes."""

    def __init__(self, url: str) -> None:
        self._admin = psycopg.connect(url, options=WRITABLE, autocommit=True)
        self._name = self._admin.info.dbname

    def stop_writes(self) -> None:
        """Make all sessions read-only. Each of them stays so for as long as it lives."""
        self._alter("SET default_transaction_read_only = on")
        self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

    def allow_writes(self) -> None:
        """Make new sessions writable."""
        self._alter("RESET default_transaction_read_only")

    def _alter(self, setting: str) -> None:
        self._admin.execute(f'ALTER DATABASE "{self._name}" {setting}')

    def close(self) -> None:
        self.allow_writes()
        self._admin.close()


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    server = Server(world.url)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncebox.storage.drivers.transactions.RETRY_DELAYS", (0.01,) * 4)


class Once(logging.Handler):
    """Does something when the log says that the server is read-only, the first time only."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__()
        self._action = action
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())
        if len(self.records) == 1:
            self._action()


@pytest.fixture
def lifted(server: Server) -> Iterator[Once]:
    """Writes are allowed as soon as the log says that the server is read-only."""
    handler = Once(server.allow_writes)
    handler.addFilter(lambda record: "the server is read-only" in record.getMessage())
    logger = logging.getLogger("oncebox")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


# -- one call -------------------------------------------------------------------------------------


def test_a_batch_waits_for_a_server_that_is_read_only(
    world: World, server: Server, lifted: Once
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    server.stop_writes()
    assert world.kinds(inbox, [order("b"), order("c", key="k")]) == ["done", "done"]
    assert lifted.records
    assert world.effects() == ["a", "b", "c"]


def test_a_server_that_stays_read_only_is_unavailable_and_says_so(
    world: World, server: Server
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    server.stop_writes()
    for call in (world.process, world.receive):
        with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
            call(inbox, [order("a")])
    with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
        world.drain(inbox)
    server.allow_writes()
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert world.states() == {"a": "done"}
    assert world.effects() == ["a"]


def test_a_drain_waits_for_a_server_that_is_read_only(
    world: World, server: Server, lifted: Once
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", stop_writes_once(server))
    assert world.receive(inbox, [order(id) for id in "ab"]) == ["stored"] * 2
    counts = world.drain(inbox, batch=1)
    assert counts == {"done": 2}
    assert lifted.records
    assert world.effects() == ["a", "b"]
    assert world.query("SELECT message_id FROM oncebox_attempt WHERE error IS NOT NULL") == []


def stop_writes_once(server: Server) -> Any:
    """A handler under whose first run the server becomes read-only; its session ends with that."""
    runs: list[str] = []

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        runs.append(payload["id"])
        if len(runs) == 1:
            server.stop_writes()
        yield from write_effect(payload, tx)

    return handle


@pytest.mark.only(("psycopg", "sqlalchemy-asyncpg", "django-postgres"))
@pytest.mark.empty_database
def test_the_tables_cannot_be_made_on_a_server_that_is_read_only(
    world: World, server: Server
) -> None:
    inbox = world.inbox(migrate=False)
    server.stop_writes()
    with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
        world.migrate(inbox)
    server.allow_writes()
    assert world.migrate(inbox)


@pytest.mark.slow
@pytest.mark.only(("psycopg",))
def test_a_url_that_wants_a_primary_reports_that_there_is_none(
    world: World, server: Server
) -> None:
    world.inbox()
    server.stop_writes()
    with Inbox("billing", f"{world.url}?target_session_attrs=read-write") as inbox:
        world.on(inbox, "order", write_effect)
        with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
            inbox.process([order("a")])


# -- pools ----------------------------------------------------------------------------------------


def idle_pool(url: str) -> Any:
    pool = psycopg_pool.ConnectionPool(url, min_size=8, open=True)
    pool.wait()
    return pool, pool.close


def idle_engine(url: str) -> Any:
    engine = sqlalchemy.create_engine(url.replace("://", "+psycopg://"), pool_size=8)
    connections = [engine.connect() for _ in range(8)]
    for connection in connections:
        connection.close()
    return engine, engine.dispose


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("make", [idle_pool, idle_engine])
def test_no_pool_keeps_connections_to_a_server_that_was_read_only(
    make: Any, world: World, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    world.inbox()
    server.stop_writes()
    pool, close = make(world.url)
    server.allow_writes()
    inbox = Inbox("billing", pool)
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert caplog.text.count("the server is read-only") == 1
    inbox.close()
    close()


# -- handlers -------------------------------------------------------------------------------------


def make_read_only(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    """The second message forbids itself to write, and then writes."""
    if payload["id"] == "b":
        yield tx.execute("SELECT set_config('transaction_read_only', 'on', true)")
    yield from write_effect(payload, tx)


def test_a_handler_that_makes_its_transaction_read_only_fails_only_its_message(
    world: World,
) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", make_read_only)
    assert world.kinds(inbox, [order(id) for id in "abc"]) == ["done", "failed", "done"]
    assert world.effects() == ["a", "c"]


@pytest.mark.only(("psycopg", "sqlalchemy-asyncpg", "django-postgres"))
def test_a_message_whose_commit_finds_another_server_read_only_fails_without_the_others(
    world: World,
) -> None:
    """Such as one behind postgres_fdw."""
    inbox = world.inbox()
    world.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''the remote is read-only'' USING ERRCODE = ''25006''; END'"
    )
    world.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW WHEN (new.id = 'b') EXECUTE FUNCTION refuse()"
    )
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order(id) for id in "abc"]) == ["done", "failed", "done"]
    assert world.effects() == ["a", "c"]


def test_a_handler_that_leaves_its_session_read_only_delays_only_the_next_batch(
    world: World,
) -> None:
    inbox = world.inbox()

    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from write_effect(payload, tx)
        yield tx.execute("SELECT set_config('default_transaction_read_only', 'on', false)")

    world.on(inbox, "order", handle)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert world.kinds(inbox, [order("b")]) == ["done"]
    assert world.effects() == ["a", "b"]


# -- services -------------------------------------------------------------------------------------


def consumer(inbox: Inbox, file: Any) -> Loop:
    return Consumer(inbox, FileSource(file, follow=True))


def drainer(inbox: Inbox, file: Any) -> Loop:
    return Worker(inbox, poll=0.05)


@pytest.mark.only(LOOPS, quick=("psycopg",))
@pytest.mark.parametrize("make", [consumer, drainer])
def test_a_loop_waits_while_the_server_is_read_only(
    make: Any,
    world: World,
    server: Server,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(oncebox.services.loop, "LONGEST_OUTAGE", 0.1)
    file = tmp_path / "events"
    file.touch()
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    loop = make(inbox, file)
    beats: list[str] = []
    loop.on_beat = beats.append
    thread = threading.Thread(target=serve, args=(world, loop))
    thread.start()
    try:
        wait_until(lambda: len(beats) > 2, "it does not begin")
        assert set(beats) == {""}
        server.stop_writes()
        wait_until(lambda: beats[-1] == READ_ONLY, "nothing was noticed")
        wait_until(lambda: caplog.text.count("(the server is read-only: ") > 3, "it gave up")
        server.allow_writes()
        wait_until(lambda: beats[-1] == "", "it does not notice the end")
    finally:
        loop.stop()
        thread.join(20)
    assert not thread.is_alive()


def serve(world: World, loop: Loop) -> None:
    try:
        loop.run()
    finally:
        if world.name.startswith("django"):  # which has a connection per thread
            from django.db import connections

            connections[world.database().alias].close()


# -- a standby ------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.only(
    ("psycopg", "sqlalchemy-psycopg", "sqlalchemy-asyncpg", "django-postgres"), quick=("psycopg",)
)
def test_a_standby_is_waited_for_until_it_is_promoted(world: World, postgres: Postgres) -> None:
    world.inbox()
    with postgres.standby() as standby:
        primary = world.url
        parts = urlsplit(primary)
        world.move_to(urlunsplit(parts._replace(netloc=f"postgres@127.0.0.1:{standby.port}")))
        inbox = world.inbox(migrate=False)
        world.on(inbox, "order", write_effect)
        with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
            world.process(inbox, [order("a")])
        with pytest.raises(DatabaseUnavailable, match="the server is read-only"):
            world.drain(inbox)
        standby.promote()
        assert world.kinds(inbox, [order("a")]) == ["done"]
        assert world.effects() == ["a"]
        world.close()
        world.move_to(primary)
