"""The Drainer: a loop that runs what is stored until it is told to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from test_drain import Shop, kept

import oncebox.alone
import oncebox.database
import oncebox.drain
import oncebox.services.loop
from oncebox import Drainer, Retry
from oncebox.errors import ConfigurationError, SchemaMissing
from services import wait_until
from services.postgres import Postgres
from worlds import BOTH, World, order

OUTAGE = "it is tried again in"


@contextmanager
def running(world: World, drainer: Drainer) -> Iterator[None]:
    """A drainer at work in a thread; it is stopped at the end, and must return."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(drainer.arun()) if world.is_async else drainer.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        drainer.stop()
        thread.join(20)
    assert not thread.is_alive(), "stop() was not heard"
    assert not errors


def workers(world: World) -> list[tuple[Any, ...]]:
    return world.query("SELECT consumer, batch FROM oncebox_worker")


def wait_for(world: World, *ids: str) -> None:
    wait_until(lambda: world.effects() == list(ids), f"{ids} did not run")


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


@pytest.mark.only((*BOTH, "django-postgres", "sqlalchemy-pysqlite"))
def test_a_drainer_finds_what_is_stored_until_it_is_stopped(world: World, shop: Shop) -> None:
    shop.receive(order("1"))
    with running(world, Drainer(shop.inbox, batch=9, poll=0.05)):
        wait_for(world, "1")
        assert workers(world) == [("billing", 9)]
        time.sleep(0.1)  # it has gone to sleep by now
        shop.receive(kept("2"), kept("3"))
        wait_for(world, "1", "2", "3")
    assert workers(world) == []
    assert shop.receive(order("4")) == ["stored"]
    assert world.pending() == [("4", 0, "ready")]


@pytest.mark.only(("psycopg-async", "aiosqlite", "sqlalchemy-asyncpg"))
def test_a_drainer_runs_beside_other_tasks(world: World, shop: Shop) -> None:
    drainer = Drainer(shop.inbox, poll=0.05)

    async def main() -> None:
        task = asyncio.create_task(drainer.arun())
        await shop.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        assert workers(world) == [("billing", 100)]
        await shop.inbox.areceive([order("2")])
        await until(lambda: world.effects() == ["1", "2"])
        drainer.stop()
        await asyncio.wait_for(task, 10)

    world.run(main())
    assert workers(world) == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


@pytest.mark.only((*BOTH, "aiosqlite"))
def test_stop_wakes_a_drainer_that_sleeps(world: World, shop: Shop) -> None:
    drainer = Drainer(shop.inbox, poll=3600)
    if world.is_async:

        async def main() -> None:
            task = asyncio.create_task(drainer.arun())
            await until(lambda: bool(workers(world)))
            await asyncio.sleep(0.3)
            threading.Thread(target=drainer.stop).start()
            await asyncio.wait_for(task, 10)

        world.run(main())
    else:
        with running(world, drainer):
            wait_until(lambda: bool(workers(world)), "it did not sign on")
            time.sleep(0.3)  # so that it sleeps for longer than this test may take
    assert workers(world) == []


@pytest.mark.only(BOTH)
def test_stop_lets_the_batch_in_hands_be_finished(world: World) -> None:
    drainers: list[Drainer] = []
    shop = Shop(world)

    def stop(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        drainers[0].stop()
        yield from shop.handle(payload, tx)

    world.on(shop.inbox, "stop", stop)
    shop.receive(order("1", type="stop"))
    drainers.append(Drainer(shop.inbox))
    drainers[0].run()
    assert world.effects() == ["1"]
    assert world.pending() == []


@pytest.mark.only(("sqlite3",))
def test_a_drainer_that_was_stopped_before_it_began_does_nothing(world: World, shop: Shop) -> None:
    shop.receive(order("1"))
    drainer = Drainer(shop.inbox)
    drainer.stop()
    drainer.run()
    assert world.effects() == []


@pytest.mark.only(BOTH)
def test_two_drainers_of_one_inbox_share_the_work(world: World, shop: Shop) -> None:
    ids = [f"{n:02}" for n in range(40)]
    shop.receive(*[kept(id, f"key {int(id) % 6}") for id in ids])
    with running(world, Drainer(shop.inbox, batch=2, poll=0.05)):
        with running(world, Drainer(shop.inbox, batch=2, poll=0.05)):
            wait_until(lambda: len(workers(world)) == 2, "they did not sign on both")
            wait_for(world, *ids)
    ran = shop.ran()
    for key in range(6):
        of_key = list(dict.fromkeys(id for id in ran if int(id) % 6 == key))
        assert of_key == sorted(of_key)
    assert workers(world) == []


@pytest.mark.only(BOTH)
def test_a_drainer_wakes_what_becomes_due(world: World) -> None:
    """Nobody stores anything when the time of a retry comes."""
    shop = Shop(world, retry=Retry(first=timedelta(seconds=0.3), jitter=0))
    shop.bad["1"] = ValueError()
    assert shop.process(kept("1"), kept("2")) == ["failed", "parked"]
    shop.bad.clear()
    with running(world, Drainer(shop.inbox, poll=0.05)):
        wait_for(world, "1", "2")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a database does not wait for long."""
    monkeypatch.setattr(oncebox.services.loop, "LONGEST_OUTAGE", 0.1)
    for module in (oncebox.database, oncebox.drain, oncebox.alone):
        monkeypatch.setattr(module, "PAUSES", (0.01,) * 4)


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_drainer_survives_a_database_that_goes_away_and_comes_back(
    world: World, shop: Shop, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    shop.receive(order("1"))
    with running(world, Drainer(shop.inbox, poll=0.05)):
        wait_for(world, "1")
        postgres.crash()
        wait_until(lambda: caplog.text.count(OUTAGE) > 2, "nothing was noticed")
        postgres.restart()
        shop.receive(order("2"))
        wait_for(world, "1", "2")
        assert workers(world) == [("billing", 100)], "it is the worker that it was before"
    assert workers(world) == []


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-asyncpg",))
def test_an_async_drainer_survives_it_as_well(
    world: World, shop: Shop, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        drainer = Drainer(shop.inbox, poll=0.05)
        task = asyncio.create_task(drainer.arun())
        await until(lambda: bool(workers(world)))
        postgres.crash()
        await until(lambda: caplog.text.count(OUTAGE) > 2)
        postgres.restart()  # here: the server dies with the thread that started it
        await shop.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        drainer.stop()
        await asyncio.wait_for(task, 10)

    world.run(main())
    assert workers(world) == []


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_drainer_stops_while_the_database_is_away(
    world: World, shop: Shop, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    with running(world, Drainer(shop.inbox, poll=0.05)):
        wait_until(lambda: bool(workers(world)), "it did not sign on")
        postgres.crash()
        wait_until(lambda: OUTAGE in caplog.text, "nothing was noticed")


@pytest.mark.only(("sqlite3",))
def test_what_no_waiting_mends_ends_the_drainer(world: World) -> None:
    inbox = world.inbox(migrate=False)
    inbox.on("order")(lambda payload: None)
    with pytest.raises(SchemaMissing):
        Drainer(inbox).run()


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("poll", [0, -1, 0.001, float("nan")])
def test_a_poll_that_would_never_rest_is_refused(world: World, shop: Shop, poll: float) -> None:
    with pytest.raises(ConfigurationError, match="poll is a number of seconds"):
        Drainer(shop.inbox, poll=poll)


@pytest.mark.only(("sqlite3",))
def test_a_batch_of_nothing_is_refused(world: World, shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="batch is a number"):
        Drainer(shop.inbox, batch=0).run()


# -- a hint that something was stored -------------------------------------------------------------


def listens(world: World) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    return bool(world.query(sql)[0][0])


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself before this test is over."""
    monkeypatch.setattr(oncebox.services.loop, "SOONEST", 60)


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg",))
def test_with_notify_a_drainer_looks_at_once(world: World) -> None:
    shop = Shop(world, notify=True)
    drainer = Drainer(shop.inbox, poll=120)
    with running(world, drainer):
        wait_until(lambda: listens(world), "it does not listen")
        started = time.monotonic()
        shop.receive(order("1"))
        wait_for(world, "1")
        assert time.monotonic() - started < 30
        drainer.stop()
        shop.receive(order("2"))  # wakes it


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg",))
def test_stop_wakes_a_drainer_that_listens(world: World) -> None:
    shop = Shop(world, notify=True)
    drainer = Drainer(shop.inbox, poll=120)
    thread = threading.Thread(target=drainer.run)
    thread.start()
    wait_until(lambda: listens(world), "it does not listen")
    drainer.stop()
    thread.join(1)
    late = thread.is_alive()
    shop.receive(order("1"))  # wakes it
    thread.join()
    assert not late


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg-async",))
def test_with_notify_an_async_drainer_looks_at_once(world: World) -> None:
    shop = Shop(world, notify=True)

    async def main() -> None:
        drainer = Drainer(shop.inbox, poll=120)
        task = asyncio.create_task(drainer.arun())
        await until(lambda: listens(world))
        await shop.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        drainer.stop()
        await shop.inbox.areceive([order("2")])  # wakes it
        await asyncio.wait_for(task, 10)

    world.run(main())


@pytest.mark.only(("sqlite3",))
def test_where_there_are_no_notifications_they_are_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="SQLite has no notifications"):
        world.inbox(notify=True)
