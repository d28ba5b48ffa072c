"""When the database asks to run a unit again, and what happens when that does not help."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

import oncebox.processing.inline
import oncebox.storage.drivers.transactions
from oncebox.errors import DatabaseUnavailable
from oncebox.storage.drivers.psycopg import queueing
from oncebox.testing import adeliver, assert_kinds, deliver
from support.transactions import Conflict
from support.worlds import World, order, write_effect


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run again is run again soon."""
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.01,) * 4)


@pytest.mark.only(("sqlite3", "psycopg", "psycopg-async", "sqlalchemy-psycopg", "django-sqlite"))
def test_a_conflict_is_run_again_and_not_counted_as_an_attempt(world: World) -> None:
    runs: list[str] = []

    def conflict_twice(payload: dict[str, Any], tx: Any) -> Any:
        yield from write_effect(payload, tx)
        runs.append(payload["id"])
        if len(runs) < 3:
            raise Conflict

    inbox = world.inbox()
    world.on(inbox, "order", conflict_twice)
    assert world.kinds(inbox, [order("a")]) == ["done"]
    assert runs == ["a"] * 3
    assert world.effects() == ["a"]
    assert world.query("SELECT count(*) FROM oncebox_attempt") == [(0,)]


@pytest.mark.only(("sqlite3", "psycopg", "psycopg-async"))
def test_messages_that_always_conflict_are_stored_to_run_isolated(world: World) -> None:
    def conflict(payload: dict[str, Any], tx: Any) -> Any:
        yield from write_effect(payload, tx)
        raise Conflict

    inbox = world.inbox()
    world.on(inbox, "order", conflict)
    assert world.kinds(inbox, [order("a", key="k"), order("b", key="k")]) == ["stored", "stored"]
    assert world.pending() == [("a", 0, "ready"), ("b", 0, "ready")]
    rows = world.query("SELECT isolated, last_error FROM oncebox_pending")
    assert all(isolated and error.startswith("Conflict") for isolated, error in rows)
    assert world.effects() == []
    assert world.kinds(inbox, [order("c", key="k")]) == ["blocked"], "it does not overtake"


@pytest.mark.only(("psycopg", "sqlalchemy-psycopg"))
def test_a_full_database_is_reported_and_nothing_is_acked(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    world.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
    )
    world.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON oncebox_minute_counter EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(DatabaseUnavailable, match="do not ack"):
        world.process(inbox, [order("a")])
    assert world.effects() == []
    world.execute("DROP TRIGGER refuse ON oncebox_minute_counter")
    assert world.kinds(inbox, [order("a")]) == ["done"]


@pytest.mark.only(("sqlite3",))
def test_a_slow_batch_of_failures_stores_the_messages_it_has_no_time_for(world: World) -> None:
    """Each gets a run of its own later, instead of running into the timeout together."""

    def slow(payload: dict[str, Any], tx: Any) -> Any:
        time.sleep(0.2)
        raise ValueError
        yield

    inbox = world.inbox(transaction_timeout=timedelta(seconds=1))
    world.on(inbox, "order", slow)
    kinds = world.kinds(inbox, [order(f"m{n}", key=str(n)) for n in range(12)])
    assert set(kinds) == {"failed", "stored"}
    assert kinds[0] == "failed"
    assert len(world.pending()) == 12


@pytest.mark.only(("sqlite3",))
def test_a_unit_that_exceeded_its_timeout_is_not_run_again(world: World) -> None:
    runs: list[str] = []

    def slow(payload: dict[str, Any], tx: Any) -> Any:
        runs.append(payload["id"])
        time.sleep(1.1)
        raise Conflict
        yield

    inbox = world.inbox(transaction_timeout=timedelta(seconds=1))
    world.on(inbox, "order", slow)
    assert world.kinds(inbox, [order("a")]) == ["stored"]
    assert runs == ["a"]


# -- what psycopg must not change under us --------------------------------------------------------


def test_queueing_is_supported_by_the_psycopg_that_is_installed() -> None:
    """If this fails, psycopg changed its private names: adapt queueing.py or be slower."""
    assert queueing.SUPPORTED


@pytest.mark.only(("psycopg", "psycopg-async"))
def test_without_queueing_everything_works_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queueing, "SUPPORTED", False)
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    batch = [order(f"m{n}") for n in range(50)]
    assert world.kinds(inbox, batch) == ["done"] * 50
    assert len(world.effects()) == 50


@pytest.mark.only(("psycopg", "psycopg-async"))
def test_statements_that_are_prepared_and_failed_by_turns_are_never_confused(
    world: World,
) -> None:
    """psycopg prepares frequent statements, and drops them when a savepoint is rolled back."""

    def fail_some(payload: dict[str, Any], tx: Any) -> Any:
        number = int(payload["id"])
        for text in range(number % 4 + 1):
            sql = f"INSERT INTO effects (id, body) VALUES (:id, 'text {text}')"
            yield tx.execute(sql, id=payload["id"])
        if number % 13 == 7:
            yield tx.execute("INSERT INTO accounts VALUES (NULL, :n)", n=number)

    inbox = world.inbox()
    world.on(inbox, "order", fail_some)
    kinds = [k for start in range(0, 300, 60) for k in _batch(world, inbox, start)]
    assert [n for n, kind in enumerate(kinds) if kind != "done"] == list(range(7, 300, 13))
    done = [n for n in range(300) if n % 13 != 7]
    assert len(world.effects()) == sum(n % 4 + 1 for n in done)


def _batch(world: World, inbox: Any, start: int) -> list[str]:
    return world.kinds(inbox, [order(str(n), key=str(n)) for n in range(start, start + 60)])


# -- the testing helpers on real SQL --------------------------------------------------------------


@pytest.mark.only(("sqlite3", "psycopg", "aiosqlite", "psycopg-async"))
def test_deliver_disturbs_and_processes(world: World) -> None:
    inbox = world.inbox()
    world.on(inbox, "order", write_effect)
    orders = [order(f"m{n}", key=str(n % 3)) for n in range(10)]
    if world.is_async:
        outcomes = world.run(adeliver(inbox, *orders, copies=3, seed=1, batch=7))
    else:
        outcomes = deliver(inbox, *orders, copies=3, seed=1, batch=7)
    assert_kinds(outcomes, done=10, duplicate=20)
    assert len(world.effects()) == 10
