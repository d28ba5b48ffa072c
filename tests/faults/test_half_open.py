"""A connection on which the server does not respond any more is closed, and its unit ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from faults.proxy import Proxy
from oncebox import Inbox
from oncebox.errors import DatabaseUnavailable
from oncebox.storage.drivers import watchdog
from oncebox.storage.drivers.psycopg import listening
from oncebox.storage.drivers.psycopg.database import PsycopgDatabase
from oncebox.storage.drivers.sqlalchemy.database import SqlAlchemyDatabase
from oncebox.storage.steps import run
from support.services.postgres import Postgres
from support.worlds import World, order, write_effect

ADAPTERS = (
    "psycopg",
    "psycopg-unpiped",
    "psycopg-async",
    "sqlalchemy-psycopg",
    "sqlalchemy-psycopg-async",
    "sqlalchemy-asyncpg",
    "django-postgres",
)
QUICK = ("psycopg", "sqlalchemy-asyncpg")
pytestmark = [pytest.mark.crash, pytest.mark.only(ADAPTERS, quick=QUICK)]

A_SECOND = timedelta(seconds=1)
PATIENCE = 30.0
"""Seconds that no call takes here, although each bound below is about two seconds."""


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with Proxy.before(world.url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def short_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MARGIN", 1.0)


def inbox_behind(world: World, proxy: Proxy) -> Inbox:
    """An inbox that reaches its database through the proxy; the test goes straight there."""
    world.migrate(Inbox("billing", world.database()))
    direct, world.url = world.url, proxy.url(world.url)
    world.use_database(None)
    inbox = world.inbox(migrate=False, transaction_timeout=A_SECOND)
    world.url = direct
    return inbox


class Blackhole:
    """A handler that makes the first run's connection half-open, and then waits for an answer."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.runs = 0

    def __call__(self, payload: dict[str, Any], tx: Any) -> Generator[Any, Any, Any]:
        self.runs += 1
        yield tx.execute("INSERT INTO effects (id, body) VALUES (:id, '')", id=payload["id"])
        if self.runs == 1:
            self.proxy.blackhole()
        result = yield tx.execute("SELECT 1")
        yield result.rows()


def handler(blackhole: Blackhole) -> Any:
    def handle(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        yield from blackhole(payload, tx)

    return handle


def test_a_half_open_connection_ends_with_the_transaction_timeout(
    world: World, proxy: Proxy
) -> None:
    inbox = inbox_behind(world, proxy)
    blackhole = Blackhole(proxy)
    world.on(inbox, "order", handler(blackhole))
    started = time.monotonic()
    assert world.kinds(inbox, [order("a")]) == ["stored"]
    assert time.monotonic() - started < PATIENCE
    assert world.effects() == []
    assert world.drain(inbox) == {"done": 1}
    assert world.effects() == ["a"]
    assert blackhole.runs == 2


def test_a_server_that_stops_responding_is_unavailable(world: World, proxy: Proxy) -> None:
    inbox = inbox_behind(world, proxy)
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    proxy.blackhole()
    proxy.refuse()
    with pytest.raises(DatabaseUnavailable):
        world.process(inbox, [order("b")])
    assert world.effects() == ["a"]


@pytest.mark.slow
@pytest.mark.only(("psycopg", "sqlalchemy-psycopg"))
def test_a_suspended_server_is_unavailable_until_it_resumes(
    world: World, postgres: Postgres
) -> None:
    world.migrate(Inbox("billing", world.database()))
    url = world.url.replace("://", "+psycopg://") if "sqlalchemy" in world.name else world.url
    with Inbox("billing", url, transaction_timeout=A_SECOND) as inbox:
        world.on(inbox, "order", write_effect)
        assert world.kinds(inbox, [order("a")]) == ["done"]
        postgres.pause()
        with pytest.raises(DatabaseUnavailable):
            inbox.process([order("b")])
        postgres.resume()
        assert world.kinds(inbox, [order("b")]) in (["done"], ["duplicate"])
    assert world.effects() == ["a", "b"]


@pytest.mark.only(("psycopg",))
def test_a_listener_on_a_half_open_connection_falls_back_to_polling(
    world: World, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "STATEMENT_TIMEOUT", 1.0)
    database = PsycopgDatabase.from_url(proxy.url(world.url), is_async=False)
    listener = database.listen("stored")
    assert listener is not None
    assert run(listener.wait(0.01)), "it may have missed something before"
    proxy.blackhole()
    assert not run(listener.wait(0.01))
    assert run(listener.wait(0.01)), "it listens again"
    run(listener.close())


# -- the settings of TCP --------------------------------------------------------------------------


def user_timeout(connection: Any) -> int:
    """TCP_USER_TIMEOUT of a driver's connection, in milliseconds."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize(("given", "found"), [("", 25_000), ("?tcp_user_timeout=7000", 7_000)])
def test_our_own_pool_detects_a_server_that_disappeared(
    world: World, given: str, found: int
) -> None:
    database = PsycopgDatabase.from_url(world.url + given, is_async=False)
    run(database.open())
    work = database.work()
    run(database.acquire(work))
    assert user_timeout(work.connection) == found
    run(database.release(work))
    run(database.close())


@pytest.mark.only(("sqlalchemy-psycopg",))
@pytest.mark.parametrize(("given", "found"), [("", 25_000), ("?tcp_user_timeout=7000", 7_000)])
def test_our_own_engine_detects_a_server_that_disappeared(
    world: World, given: str, found: int
) -> None:
    url = world.url.replace("://", "+psycopg://") + given
    database = SqlAlchemyDatabase.from_url(url, is_async=False)
    work = database.work()
    run(database.acquire(work))
    assert user_timeout(work.connection.connection.driver_connection) == found
    run(database.release(work))
    run(database.close())
