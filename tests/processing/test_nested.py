"""A handler that calls process() on its own inbox."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from support.worlds import World, order, write_effect

SYNC = ("sqlite3", "psycopg", "sqlalchemy-psycopg", "django-postgres", "django-sqlite")
ASYNC = ("aiosqlite", "psycopg-async", "sqlalchemy-asyncpg")


@pytest.mark.only(SYNC)
def test_process_inside_a_handler_is_refused(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)

    @inbox.on("outer")
    def outer(payload: dict[str, Any]) -> None:
        inbox.process([order("inner")])

    outcome = world.process(inbox, [order("outer", type="outer")])[0]
    assert outcome.kind == "failed"
    assert "a handler must not call process() on its own inbox" in str(outcome.error)
    assert world.effects() == []
    assert world.kinds(inbox, [order("inner")]) == ["done"]


@pytest.mark.only(ASYNC)
def test_aprocess_inside_a_handler_is_refused(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)

    @inbox.on("outer")
    async def outer(payload: dict[str, Any]) -> None:
        await inbox.aprocess([order("inner")])

    outcome = world.process(inbox, [order("outer", type="outer")])[0]
    assert "a handler must not call aprocess() on its own inbox" in str(outcome.error)
    assert world.effects() == []
    assert world.kinds(inbox, [order("inner")]) == ["done"]


@pytest.mark.only(("psycopg",))
def test_another_inbox_or_thread_may_process_while_a_handler_runs(world: World) -> None:
    inbox, other = world.inbox(), world.inbox("shipping")
    world.on(inbox, "order", write_effect)
    other.on("order")(lambda payload: None)
    kinds: list[str] = []

    @inbox.on("outer")
    def outer(payload: dict[str, Any]) -> None:
        kinds.extend(world.kinds(other, [order("inner")]))
        thread = threading.Thread(target=lambda: kinds.extend(world.kinds(inbox, [order("a")])))
        thread.start()
        thread.join()

    assert world.kinds(inbox, [order("outer", type="outer")]) == ["done"]
    assert kinds == ["done", "done"]


@pytest.mark.only(("psycopg-async",))
def test_a_task_that_a_handler_started_may_process(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    tasks: list[asyncio.Task[Any]] = []

    @inbox.on("outer")
    async def outer(payload: dict[str, Any]) -> None:
        tasks.append(asyncio.create_task(inbox.aprocess([order("later")])))

    async def run() -> str:
        await inbox.aprocess([order("outer", type="outer")])
        return str((await tasks[0])[0].kind)

    assert world.run(run()) == "done"
