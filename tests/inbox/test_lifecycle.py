"""The inbox as an object: opened, shared by threads, closed, refused across a fork."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

import psycopg_pool
import pytest

from oncebox import Inbox
from oncebox.errors import ConfigurationError, DatabaseUnavailable, ForkedInbox
from support.worlds import World, order, write_effect


def test_an_inbox_is_a_context_manager_and_may_be_used_again(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)

    async def asynchronous(id: str) -> str:
        async with inbox:
            return (await inbox.aprocess([order(id)]))[0].kind

    for id in ("a", "b"):
        if world.is_async:
            assert world.run(asynchronous(id)) == "done"
        else:
            with inbox:
                assert inbox.process([order(id)])[0].kind == "done"
    assert world.effects() == ["a", "b"]


@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-psycopg", "django-postgres"))
def test_threads_share_an_inbox(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    kinds: list[str] = []

    def work(thread: int) -> None:
        for n in range(5):
            batch = [order(f"{thread}-{n}", key="k"), order(f"all-{n}", key="k")]
            kinds.extend(world.kinds(inbox, batch))
        if world.name.startswith("django"):
            from django.db import connections

            connections[world.database().alias].close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kinds) == ["done"] * 35 + ["duplicate"] * 25
    assert len(world.effects()) == 35


@pytest.mark.only(("psycopg-async", "aiosqlite", "sqlalchemy-asyncpg"))
def test_tasks_share_an_inbox(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)

    async def work() -> list[Any]:
        batches = [[order(f"{n}", key="k"), order("all", key="k")] for n in range(8)]
        return list(await asyncio.gather(*(inbox.aprocess(batch) for batch in batches)))

    outcomes = [outcome.kind.value for batch in world.run(work()) for outcome in batch]
    assert sorted(outcomes) == ["done"] * 9 + ["duplicate"] * 7


@pytest.mark.only(("sqlite3", "psycopg"))
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_inbox_is_refused_on_the_other_side_of_a_fork(world: World) -> None:
    """Two processes on one connection would speak into each other's transactions."""
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.process(inbox, [order("a")])
    child = os.fork()
    if child == 0:
        try:
            inbox.process([order("b")])
        except ForkedInbox:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert world.kinds(inbox, [order("b")]) == ["done"]


@pytest.mark.only(("sqlite3", "psycopg"))
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_inbox_that_was_only_configured_survives_a_fork(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    child = os.fork()
    if child == 0:
        try:
            os._exit(7 if inbox.process([order("a")])[0].kind == "done" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert world.effects() == ["a"]


@pytest.mark.only(("psycopg",))
@pytest.mark.empty_database
def test_the_users_pool_is_used_and_left_open(world: World) -> None:
    with psycopg_pool.ConnectionPool(world.url, min_size=1, max_size=2) as pool:
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload: None)
        with pytest.raises(Exception, match="missing"):
            inbox.process([order("a")])
        inbox.migrate()
        assert inbox.process([order("a")])[0].kind == "done"
        inbox.close()
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.only(("psycopg",))
def test_a_pool_full_of_closed_connections_is_refilled_at_the_start(world: World) -> None:
    world.inbox()
    with psycopg_pool.ConnectionPool(world.url, min_size=4, max_size=4) as pool:
        pool.wait()
        inbox = Inbox("billing", pool)
        inbox.on("order")(lambda payload: None)
        world.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert inbox.process([order("a")])[0].kind == "done"


@pytest.mark.only(("psycopg-async",))
def test_the_users_async_pool_is_used_and_left_open(world: World) -> None:
    async def use() -> None:
        async with psycopg_pool.AsyncConnectionPool(world.url, min_size=1, max_size=2) as pool:
            inbox = Inbox("billing", pool)

            @inbox.on("order")
            async def nothing(payload: dict[str, Any]) -> None: ...

            await inbox.amigrate()
            assert (await inbox.aprocess([order("a")]))[0].kind == "done"
            await inbox.aclose()
            async with pool.connection() as connection:
                await connection.execute("SELECT 1")

    world.run(use())


@pytest.mark.only(("sqlalchemy-psycopg", "sqlalchemy-psycopg-async"))
def test_an_unreachable_database_is_named_and_nothing_is_acked(world: World) -> None:
    world.use_database("postgresql+psycopg://unknown@127.0.0.1:1/nothing")
    inbox = world.inbox(migrate=False)
    world.on(inbox, "order", write_effect)
    with pytest.raises(DatabaseUnavailable, match="cannot connect to the database"):
        world.process(inbox, [order("a")])


@pytest.mark.only(("psycopg-async", "sqlalchemy-asyncpg", "aiosqlite"))
def test_a_cancelled_batch_is_rolled_back_and_can_be_delivered_again(world: World) -> None:
    inbox = world.inbox()
    started = asyncio.Event()

    async def slow(payload: dict[str, Any], tx: Any) -> None:
        await tx.execute("INSERT INTO effects VALUES (:id, '')", id=payload["id"])
        if payload["id"] == "slow" and not started.is_set():
            started.set()
            await asyncio.Event().wait()

    inbox.on("order")(slow)

    async def cancel() -> None:
        task = asyncio.create_task(inbox.aprocess([order("a"), order("slow")]))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    world.run(cancel())
    assert world.effects() == []
    assert world.kinds(inbox, [order("a"), order("slow")]) == ["done", "done"]
    assert world.effects() == ["a", "slow"]


@pytest.mark.only(("psycopg-async", "aiosqlite"))
def test_a_cancellation_inside_a_handler_is_the_handlers_failure(world: World) -> None:
    inbox = world.inbox()

    async def confused(payload: dict[str, Any], tx: Any) -> None:
        if payload["id"] == "bad":
            raise asyncio.CancelledError

    inbox.on("order")(confused)
    assert world.kinds(inbox, [order("a"), order("bad")]) == ["done", "failed"]


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit])
@pytest.mark.only(("sqlite3", "psycopg", "sqlalchemy-psycopg", "django-sqlite"))
def test_an_exception_that_ends_loops_or_programs_loses_nothing(
    world: World, error: type[BaseException]
) -> None:
    inbox = world.inbox()
    raising = [True]

    @inbox.on("order")
    def end(payload: dict[str, Any], tx: Any) -> None:
        tx.execute("INSERT INTO effects VALUES (:id, '')", id=payload["id"])
        if payload["id"] == "bad" and raising:
            raise error

    batch = [order("a"), order("bad")]
    if issubclass(error, Exception | GeneratorExit):
        assert world.kinds(inbox, batch) == ["done", "failed"]
        assert world.effects() == ["a"]
    else:
        with pytest.raises(error):
            world.process(inbox, batch)
        assert world.effects() == []
        raising.clear()
        assert world.kinds(inbox, batch) == ["done", "done"]


def test_the_core_imports_without_any_driver() -> None:
    import subprocess

    code = (
        "import sys\n"
        "for name in 'psycopg psycopg_pool sqlalchemy django aiosqlite pydantic'.split():\n"
        "    sys.modules[name] = None\n"
        "import oncebox, oncebox.testing\n"
        "inbox = oncebox.Inbox('billing', 'sqlite:///x.db')\n"
        "for url in ('postgresql://h/d', 'sqlite+pysqlite:///x.db'):\n"
        "    try: oncebox.Inbox('billing', url)\n"
        "    except oncebox.errors.MissingExtra as error: print(error)\n"
        "try: oncebox.Django\n"
        "except oncebox.errors.MissingExtra as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [
        "psycopg is not installed: pip install 'oncebox[postgres]'",
        "sqlalchemy is not installed: pip install 'oncebox[sqlalchemy]'",
        "django is not installed: pip install 'oncebox[django]'",
    ]


@pytest.mark.only(("psycopg",))
def test_a_pool_that_is_not_open_is_explained(world: World) -> None:
    pool = psycopg_pool.ConnectionPool(world.url, min_size=1, open=False)
    inbox = Inbox("billing", pool)
    inbox.on("order")(lambda payload: None)
    text = r"the psycopg pool is not open: call pool\.open\(\) first"
    with pytest.raises(ConfigurationError, match=text):
        inbox.process([order("a")])
    with pytest.raises(ConfigurationError, match=text):
        inbox.migrate()
    with pool:
        inbox.migrate()
        assert inbox.process([order("a")])[0].kind == "done"


@pytest.mark.only(("psycopg-async",))
def test_an_async_pool_that_is_not_open_is_explained(world: World) -> None:
    async def use() -> None:
        pool = psycopg_pool.AsyncConnectionPool(world.url, open=False)
        await Inbox("billing", pool).amigrate()

    with pytest.raises(ConfigurationError, match=r"call await pool\.open\(\) first"):
        world.run(use())


@pytest.mark.only(("sqlite3", "psycopg", "aiosqlite", "psycopg-async"))
def test_the_wrong_close_is_explained(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.process(inbox, [order("a")])
    if world.is_async:
        with pytest.raises(ConfigurationError, match=r"async: call await inbox\.aclose\(\)"):
            inbox.close()
    else:
        with pytest.raises(ConfigurationError, match=r"sync: call inbox\.close\(\)"):
            asyncio.run(inbox.aclose())
    assert world.kinds(inbox, [order("b")]) == ["done"]


@pytest.mark.only(("psycopg-async",))
def test_an_inbox_cannot_be_closed_in_another_event_loop(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    with pytest.raises(ConfigurationError, match="another event loop: close it in that one"):
        asyncio.run(inbox.aclose())
    world.run(inbox.aclose())
