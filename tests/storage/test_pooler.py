"""Behind a pooler: pgbouncer in transaction mode works, whatever it knows of prepared statements.

The old pgbouncer passes prepared statements on as they are, so a client finds those of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg_pool
import pytest
from django.db import connections
from sqlalchemy.ext.asyncio import create_async_engine

from oncebox import Django, Inbox
from oncebox.errors import ConfigurationError
from oncebox.storage.drivers import pooler
from oncebox.storage.drivers.sqlalchemy.asyncpg_settings import UNPREPARED
from support.services.pgbouncer import Pgbouncer, Program, serve
from support.services.postgres import Postgres
from support.worlds import ON_POSTGRES, World, order, write_effect

QUICK = ("psycopg", "sqlalchemy-asyncpg", "django-postgres")
pytestmark = pytest.mark.only(ON_POSTGRES, quick=QUICK)

BATCHES = 12
"""More than psycopg takes until it prepares a statement."""


@pytest.fixture(params=["old", "new"])
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.getfixturevalue(f"{request.param}_pgbouncer")
    return found


@pytest.fixture
def one_session(program: Program, postgres: Postgres) -> Iterator[Pgbouncer]:
    """A pooler whose clients all share one session of the server."""
    with serve(program, postgres.url(), size=1) as pgbouncer:
        yield pgbouncer


def inbox_behind(world: World, pgbouncer: Pgbouncer, name: str = "billing") -> Inbox:
    """An inbox with connections of its own to the pooler; the test goes straight to the server."""
    direct = world.url
    world.move_to(pgbouncer.url(direct))
    try:
        if world.name == "sqlalchemy-asyncpg":  # with an engine of our own: see below for others
            world.use_database(world.url.replace("://", "+asyncpg://"))
        return world.inbox(name, migrate=False)
    finally:
        world.move_to(direct)


def write_other_effect(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    """As write_effect: a statement that takes the same parameters, and does something else."""
    yield tx.execute(
        "INSERT INTO effects (id, body) VALUES ('other ' || :id, :body)",
        id=payload["id"],
        body="",
    )


def test_clients_that_share_sessions_do_not_meet_in_prepared_statements(
    world: World, one_session: Pgbouncer
) -> None:
    world.inbox()
    one = inbox_behind(world, one_session)
    other = inbox_behind(world, one_session, "shipping")
    world.on(one, "order", write_effect)
    world.on(other, "order", write_other_effect)
    for number in range(BATCHES):
        for inbox in (one, other):
            assert world.kinds(inbox, [order(f"{number:02}", key="k")]) == ["done"]
    for inbox in (one, other):
        assert world.receive(inbox, [order(f"d{number:02}") for number in range(BATCHES)])
        assert world.drain(inbox, batch=1) == {"done": BATCHES}
    ids = [f"{number:02}" for number in range(BATCHES)]
    ids += [f"d{number:02}" for number in range(BATCHES)]
    assert world.effects() == sorted([*ids, *(f"other {id}" for id in ids)])


@pytest.mark.only(("psycopg-async", "sqlalchemy-asyncpg"))
def test_tasks_may_change_sessions_with_every_batch(
    world: World, program: Program, postgres: Postgres
) -> None:
    world.inbox()
    with serve(program, postgres.url(), size=3) as pgbouncer:
        inbox = inbox_behind(world, pgbouncer)
        world.on(inbox, "order", write_effect)

        async def many(task: int) -> list[str]:
            kinds = []
            for number in range(BATCHES):
                (outcome,) = await inbox.aprocess([order(f"{task}-{number}")])
                kinds.append(outcome.kind.value)
            return kinds

        async def all_tasks() -> list[list[str]]:
            return await asyncio.gather(*(many(task) for task in range(6)))

        assert world.run(all_tasks()) == [["done"] * BATCHES] * 6
        world.close()
    assert len(world.effects()) == 6 * BATCHES


@pytest.mark.only(("psycopg",))
def test_statements_are_prepared_where_a_pooler_supports_it(
    world: World, postgres: Postgres, new_pgbouncer: Program
) -> None:
    world.inbox()
    found = [
        threshold_behind(world, postgres, new_pgbouncer, more)
        for more in ("", "max_prepared_statements = 0")
    ]
    assert found == [5, None]


def threshold_behind(world: World, postgres: Postgres, program: Program, more: str) -> int | None:
    """The prepare_threshold of a connection to the pooler, after a batch."""
    with serve(program, postgres.url(), more=more) as pgbouncer:
        url = pgbouncer.url(world.url)
        with psycopg_pool.ConnectionPool(url, min_size=1, max_size=1, open=True) as pool:
            inbox = Inbox("billing", pool)
            world.on(inbox, "order", write_effect)
            assert world.kinds(inbox, [order(more or "default")]) == ["done"]
            inbox.close()
            with pool.connection() as connection:
                return connection.prepare_threshold


@pytest.mark.only(("psycopg",))
def test_statements_are_prepared_on_a_direct_connection(world: World) -> None:
    with psycopg_pool.ConnectionPool(world.url, min_size=1, max_size=1, open=True) as pool:
        world.inbox()
        inbox = Inbox("billing", pool)
        world.on(inbox, "order", write_effect)
        assert world.kinds(inbox, [order("a")]) == ["done"]
        inbox.close()
        with pool.connection() as connection:
            assert connection.prepare_threshold == 5
            names = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
            assert names == [], "nothing is prepared to find that out"


# -- what cannot work -----------------------------------------------------------------------------


def test_a_pooler_in_statement_mode_is_refused_by_name(
    world: World, program: Program, postgres: Postgres
) -> None:
    world.inbox()
    with serve(program, postgres.url(), mode="statement") as pgbouncer:
        inbox = inbox_behind(world, pgbouncer)
        world.on(inbox, "order", write_effect)
        with pytest.raises(ConfigurationError, match="pool_mode = transaction"):
            world.process(inbox, [order("a")])
        with pytest.raises(ConfigurationError, match="pool_mode = transaction"):
            world.drain(inbox)
        with pytest.raises(ConfigurationError, match="pool_mode = transaction"):
            world.migrate(inbox)
        world.close()


@pytest.mark.only(("sqlalchemy-asyncpg",))
def test_an_engine_of_asyncpg_that_prepares_statements_is_refused_with_the_remedy(
    world: World, old_pgbouncer: Program, postgres: Postgres
) -> None:
    world.inbox()
    with serve(old_pgbouncer, postgres.url(), size=1) as pgbouncer:
        url = pgbouncer.url(world.url).replace("://", "+asyncpg://")
        engine = create_async_engine(url)
        inbox = Inbox("billing", engine)
        world.on(inbox, "order", write_effect)
        with pytest.raises(ConfigurationError, match="prepared_statement_name_func"):
            world.process(inbox, [order("a")])
        world.run(engine.dispose())
        engine = create_async_engine(url, connect_args=UNPREPARED)
        inbox = Inbox("billing", engine)
        world.on(inbox, "order", write_effect)
        for number in range(BATCHES):
            assert world.kinds(inbox, [order(f"{number}")]) == ["done"]
        world.run(engine.dispose())


@pytest.mark.only(("django-postgres",))
def test_django_with_prepared_statements_is_refused_with_the_remedy(
    world: World, old_pgbouncer: Program, postgres: Postgres
) -> None:
    from support.django_settings import add_database

    world.inbox()
    with serve(old_pgbouncer, postgres.url(), size=1) as pgbouncer:
        alias, remove = add_database(pgbouncer.url(world.url))
        options = connections[alias].settings_dict["OPTIONS"]
        options.update(prepare_threshold=5, server_side_binding=True)
        inbox = Inbox("billing", Django(alias))
        world.on(inbox, "order", write_effect)
        with pytest.raises(ConfigurationError, match="prepare_threshold"):
            world.process(inbox, [order("a")])
        remove()


def test_the_names_that_drivers_give_are_known() -> None:
    """If a driver changes them, an old pooler would no longer be recognised."""
    assert pooler.DRIVERS_NAMES.match("_pg3_0")
    assert pooler.DRIVERS_NAMES.match("__asyncpg_stmt_1__")
    assert not pooler.DRIVERS_NAMES.match("PGBOUNCER_1")
