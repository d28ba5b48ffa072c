"""Notifications: a sleeping worker is woken when a message was stored."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import psycopg
import pytest

from oncebox import Inbox, Worker
from oncebox.errors import ConfigurationError
from support.services import wait_until
from support.worlds import World, order, write_effect

NEVER = 3600.0
"""Seconds between two polls: a worker that finds a message sooner was notified."""


@pytest.fixture
def inbox(world: World) -> Inbox:
    made = world.inbox(notify=True)
    world.on(made, "order", write_effect)
    return made


def sleeping(world: World) -> bool:
    """Whether a drainer listens: its connection waits after LISTEN."""
    return bool(
        world.query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle' AND query LIKE 'LISTEN%'"
        )
    )


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("store", ["receive", "process"])
def test_a_sleeping_worker_is_woken(
    world: World, inbox: Inbox, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncebox.services.loop.FIRST_PAUSE", NEVER)
    drainer = Worker(inbox, poll=NEVER)
    thread = threading.Thread(target=drainer.run)
    thread.start()
    try:
        wait_until(lambda: sleeping(world), "no worker listens")
        delivery = order("1", redelivered=True)
        if store == "receive":
            inbox.receive([delivery])
        else:
            inbox.process([delivery])
        wait_until(lambda: world.effects() == ["1"], "no worker was woken")
    finally:
        drainer.stop()
        inbox.receive([order("2")])
        thread.join()


@pytest.mark.only(("psycopg",))
def test_a_listening_connection_that_was_closed_is_replaced(world: World, inbox: Inbox) -> None:
    drainer = Worker(inbox, poll=0.1)
    thread = threading.Thread(target=drainer.run)
    thread.start()
    try:
        for id in ("1", "2"):
            wait_until(lambda: end_listeners(world), "no worker listens")
            inbox.receive([order(id)])
            wait_until(partial(has_run, world, id), "no worker runs the message")
    finally:
        drainer.stop()
        thread.join()


def has_run(world: World, id: str) -> bool:
    return id in world.effects()


def end_listeners(world: World) -> bool:
    """End the connection that listens: it waits after LISTEN, or after it was probed."""
    with psycopg.connect(world.url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'idle' "
            "AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
        )
        return bool(ended.fetchall())


def test_sqlite_cannot_notify(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs PostgreSQL"):
        Inbox("billing", f"sqlite:///{tmp_path}/inbox.db", notify=True)
