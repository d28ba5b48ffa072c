"""What a drain records about its runs, and which drains are refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

from oncebox.errors import ConfigurationError
from support.inboxes import LATER, InboxHarness, keyed
from support.tables import make_retries_due
from support.worlds import BOTH, SOME, World, order


@pytest.mark.only(SOME)
def test_attempts_of_stored_messages_are_recorded(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError("not yet")
    harness.receive(order("1"))
    harness.drain()
    harness.bad.clear()
    make_retries_due(world)
    harness.drain()
    rows = world.query("SELECT number, outcome, error, worker FROM oncebox_attempt ORDER BY id")
    assert [row[:2] for row in rows] == [(1, "failed"), (2, "done")]
    assert "ValueError: not yet" in rows[0][2]
    assert rows[1][2] is None
    assert f":{os.getpid()}:" in rows[1][3]
    ((state, runs, later),) = world.query(
        "SELECT state, attempts, processed_at > received_at FROM oncebox_message"
    )
    assert (state, runs, bool(later)) == ("done", 2, True)


@pytest.mark.only(BOTH)
def test_a_pending_message_has_no_time_of_processing(world: World, harness: InboxHarness) -> None:
    harness.receive(order("1"))
    assert world.query("SELECT state, processed_at FROM oncebox_message") == [("pending", None)]


@pytest.mark.only(SOME)
def test_a_stored_message_is_counted_once_as_received(world: World, harness: InboxHarness) -> None:
    harness.bad["1"] = ValueError("never")
    harness.receive(keyed("1"), keyed("2"), order("3"), order("3"))
    harness.drain()
    columns = ("received", "stored", "duplicate", "done", "failed", "blocked", "dead")
    ((*sums,),) = world.query(
        f"SELECT {','.join(f'sum({c})' for c in columns)} FROM oncebox_minute_counter"
    )
    counted = dict(zip(columns, map(int, sums), strict=True))
    assert counted.pop("blocked") >= 1
    assert counted == {
        "received": 4,
        "stored": 3,
        "duplicate": 1,
        "done": 1,
        "failed": 2,
        "dead": 1,
    }


@pytest.mark.only(SOME)
def test_a_drain_signs_on_and_off(world: World, harness: InboxHarness) -> None:
    seen: list[Any] = []

    def watch(payload: Any) -> None:
        seen.extend(world.query("SELECT consumer, name, batch FROM oncebox_worker"))

    world.on(harness.inbox, "watched", watch)
    harness.receive(order("1", type="watched"))
    harness.drain(batch=7)
    ((consumer, name, batch),) = seen
    assert (consumer, batch) == ("billing", 7)
    assert f":{os.getpid()}:" in name
    assert world.query("SELECT count(*) FROM oncebox_worker") == [(0,)]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "10", None])
def test_a_batch_size_that_is_not_a_number_is_refused(
    world: World, harness: InboxHarness, batch: Any
) -> None:
    with pytest.raises(ConfigurationError, match="batch must be a number"):
        harness.drain(batch=batch)


@pytest.mark.only(("sqlite3", "psycopg-async"))
def test_an_inbox_without_handlers_neither_receives_nor_drains(world: World) -> None:
    inbox = world.inbox()
    with pytest.raises(ConfigurationError, match="no handlers"):
        world.receive(inbox, [order("1")])
    with pytest.raises(ConfigurationError, match="no handlers"):
        world.drain(inbox)


@pytest.mark.only(("sqlalchemy-psycopg", "sqlalchemy-asyncpg"))
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_drain_is_refused_above_read_committed(world: World, level: str) -> None:
    world.use_database(world.database().execution_options(isolation_level=level))
    harness = InboxHarness(world)
    assert harness.receive(order("1")) == ["stored"]
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        harness.receive(keyed("2"))
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        harness.drain()
    assert world.pending() == [("1", 0, "ready")]
    assert world.query("SELECT count(*) FROM oncebox_worker") == [(0,)]
