"""The Worker: a loop that runs stored messages until it is stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

import oncebox.processing.crash_isolation
import oncebox.processing.drain
import oncebox.services.loop
import oncebox.storage.drivers.transactions
from oncebox import Retry, Worker
from oncebox.errors import ConfigurationError, SchemaMissing
from support.inboxes import InboxHarness, keyed
from support.services import wait_until
from support.services.postgres import Postgres
from support.worlds import BOTH, World, order

OUTAGE = "retrying in"


@contextmanager
def running(world: World, drainer: Worker) -> Iterator[None]:
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
def harness(world: World) -> InboxHarness:
    return InboxHarness(world)


@pytest.mark.only((*BOTH, "django-postgres", "sqlalchemy-pysqlite"))
def test_a_worker_runs_stored_messages_until_it_is_stopped(
    world: World, harness: InboxHarness
) -> None:
    harness.receive(order("1"))
    with running(world, Worker(harness.inbox, batch=9, poll=0.05)):
        wait_for(world, "1")
        assert workers(world) == [("billing", 9)]
        time.sleep(0.1)  # it has gone to sleep by now
        harness.receive(keyed("2"), keyed("3"))
        wait_for(world, "1", "2", "3")
    assert workers(world) == []
    assert harness.receive(order("4")) == ["stored"]
    assert world.pending() == [("4", 0, "ready")]


@pytest.mark.only(("psycopg-async", "aiosqlite", "sqlalchemy-asyncpg"))
def test_a_worker_runs_beside_other_tasks(world: World, harness: InboxHarness) -> None:
    drainer = Worker(harness.inbox, poll=0.05)

    async def main() -> None:
        task = asyncio.create_task(drainer.arun())
        await harness.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        assert workers(world) == [("billing", 100)]
        await harness.inbox.areceive([order("2")])
        await until(lambda: world.effects() == ["1", "2"])
        drainer.stop()
        await asyncio.wait_for(task, 10)

    world.run(main())
    assert workers(world) == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


@pytest.mark.only((*BOTH, "aiosqlite"))
def test_stop_wakes_a_worker_that_sleeps(world: World, harness: InboxHarness) -> None:
    drainer = Worker(harness.inbox, poll=3600)
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
def test_stop_finishes_the_batch_in_flight(world: World) -> None:
    drainers: list[Worker] = []
    harness = InboxHarness(world)

    def stop(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
        drainers[0].stop()
        yield from harness.handle(payload, tx)

    world.on(harness.inbox, "stop", stop)
    harness.receive(order("1", type="stop"))
    drainers.append(Worker(harness.inbox))
    drainers[0].run()
    assert world.effects() == ["1"]
    assert world.pending() == []


@pytest.mark.only(("sqlite3",))
def test_a_worker_that_is_stopped_before_it_starts_does_nothing(
    world: World, harness: InboxHarness
) -> None:
    harness.receive(order("1"))
    drainer = Worker(harness.inbox)
    drainer.stop()
    drainer.run()
    assert world.effects() == []


@pytest.mark.only(BOTH)
def test_two_workers_of_one_inbox_share_the_work(world: World, harness: InboxHarness) -> None:
    ids = [f"{n:02}" for n in range(40)]
    harness.receive(*[keyed(id, f"key {int(id) % 6}") for id in ids])
    with running(world, Worker(harness.inbox, batch=2, poll=0.05)):
        with running(world, Worker(harness.inbox, batch=2, poll=0.05)):
            wait_until(lambda: len(workers(world)) == 2, "they did not sign on both")
            wait_for(world, *ids)
    ran = harness.ran()
    for key in range(6):
        of_key = list(dict.fromkeys(id for id in ran if int(id) % 6 == key))
        assert of_key == sorted(of_key)
    assert workers(world) == []


@pytest.mark.only(BOTH)
def test_a_worker_runs_retries_that_become_due(world: World) -> None:
    """Nothing is stored when a retry becomes due."""
    harness = InboxHarness(world, retry=Retry(initial_delay=timedelta(seconds=0.3), jitter=0))
    harness.bad["1"] = ValueError()
    assert harness.process(keyed("1"), keyed("2")) == ["failed", "blocked"]
    harness.bad.clear()
    with running(world, Worker(harness.inbox, poll=0.05)):
        wait_for(world, "1", "2")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a database does not wait for long."""
    monkeypatch.setattr(oncebox.services.loop, "LONGEST_OUTAGE", 0.1)
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.01,) * 4)


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_worker_survives_a_database_that_goes_down_and_comes_back(
    world: World, harness: InboxHarness, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    harness.receive(order("1"))
    with running(world, Worker(harness.inbox, poll=0.05)):
        wait_for(world, "1")
        postgres.crash()
        wait_until(lambda: caplog.text.count(OUTAGE) > 2, "nothing was noticed")
        postgres.restart()
        harness.receive(order("2"))
        wait_for(world, "1", "2")
        assert workers(world) == [("billing", 100)], "it is the worker that it was before"
    assert workers(world) == []


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-asyncpg",))
def test_an_async_worker_survives_a_database_that_goes_down_and_comes_back(
    world: World, harness: InboxHarness, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        drainer = Worker(harness.inbox, poll=0.05)
        task = asyncio.create_task(drainer.arun())
        await until(lambda: bool(workers(world)))
        postgres.crash()
        await until(lambda: caplog.text.count(OUTAGE) > 2)
        postgres.restart()  # here: the server dies with the thread that started it
        await harness.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        drainer.stop()
        await asyncio.wait_for(task, 10)

    world.run(main())
    assert workers(world) == []


@pytest.mark.crash
@pytest.mark.usefixtures("impatient")
@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_worker_stops_while_the_database_is_down(
    world: World, harness: InboxHarness, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    with running(world, Worker(harness.inbox, poll=0.05)):
        wait_until(lambda: bool(workers(world)), "it did not sign on")
        postgres.crash()
        wait_until(lambda: OUTAGE in caplog.text, "nothing was noticed")


@pytest.mark.only(("sqlite3",))
def test_a_permanent_error_ends_the_worker(world: World) -> None:
    inbox = world.inbox(migrate=False)
    inbox.on("order")(lambda payload: None)
    with pytest.raises(SchemaMissing):
        Worker(inbox).run()


@pytest.mark.only(("sqlite3",))
@pytest.mark.parametrize("poll", [0, -1, 0.001, float("nan")])
def test_a_poll_interval_of_zero_is_refused(
    world: World, harness: InboxHarness, poll: float
) -> None:
    with pytest.raises(ConfigurationError, match="poll must be a number of seconds"):
        Worker(harness.inbox, poll=poll)


@pytest.mark.only(("sqlite3",))
def test_an_empty_batch_is_refused(world: World, harness: InboxHarness) -> None:
    with pytest.raises(ConfigurationError, match="batch must be a number"):
        Worker(harness.inbox, batch=0).run()


# -- a hint that something was stored -------------------------------------------------------------


def listens(world: World) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    return bool(world.query(sql)[0][0])


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker polls before this test is over."""
    monkeypatch.setattr(oncebox.services.loop, "FIRST_PAUSE", 60)


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg",))
def test_with_notify_a_worker_polls_at_once(world: World) -> None:
    harness = InboxHarness(world, notify=True)
    drainer = Worker(harness.inbox, poll=120)
    with running(world, drainer):
        wait_until(lambda: listens(world), "it does not listen")
        started = time.monotonic()
        harness.receive(order("1"))
        wait_for(world, "1")
        assert time.monotonic() - started < 30
        drainer.stop()
        harness.receive(order("2"))  # wakes it


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg",))
def test_stop_wakes_a_worker_that_listens(world: World) -> None:
    harness = InboxHarness(world, notify=True)
    drainer = Worker(harness.inbox, poll=120)
    thread = threading.Thread(target=drainer.run)
    thread.start()
    wait_until(lambda: listens(world), "it does not listen")
    drainer.stop()
    thread.join(1)
    late = thread.is_alive()
    harness.receive(order("1"))  # wakes it
    thread.join()
    assert not late


@pytest.mark.usefixtures("sleepy")
@pytest.mark.only(("psycopg-async",))
def test_with_notify_an_async_worker_polls_at_once(world: World) -> None:
    harness = InboxHarness(world, notify=True)

    async def main() -> None:
        drainer = Worker(harness.inbox, poll=120)
        task = asyncio.create_task(drainer.arun())
        await until(lambda: listens(world))
        await harness.inbox.areceive([order("1")])
        await until(lambda: world.effects() == ["1"])
        drainer.stop()
        await harness.inbox.areceive([order("2")])  # wakes it
        await asyncio.wait_for(task, 10)

    world.run(main())


@pytest.mark.only(("sqlite3",))
def test_notifications_are_refused_where_they_are_not_supported(world: World) -> None:
    with pytest.raises(ConfigurationError, match="SQLite has no notifications"):
        world.inbox(notify=True)
