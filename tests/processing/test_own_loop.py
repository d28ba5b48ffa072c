"""Loops of callers around claim() and failed(): counted, purged, and safe from failing messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from oncebox import Inbox, Reject, Retention, Retry
from oncebox.errors import ClaimError, PayloadMismatch
from support.callers import Caller, connected
from support.worlds import ALL, BOTH, SOME, World

BOOM = RuntimeError("boom")

NOT_DJANGO = (*BOTH, "sqlalchemy-asyncpg")
"""The caller of the tests keeps a block of transaction.atomic() open, where nothing is purged."""


@pytest.fixture
def caller(world: World) -> Iterator[Caller]:
    retry = Retry(max_attempts=3, jitter=0)
    inbox = world.inbox(retry=retry, retention=Retention(days=7))
    yield from connected(Caller(world, inbox))


def count(caller: Caller, name: str) -> int:
    """A counter of the last minutes, as the status shows it."""
    inbox, since = caller.inbox, datetime.now(UTC) - timedelta(minutes=5)
    if caller.world.is_async:
        return int(getattr(caller.world.run(inbox.arates(since=since)), name))
    return int(getattr(inbox.rates(since=since), name))


def count_rows(world: World, column: str) -> int:
    return int(world.query(f"SELECT coalesce(sum({column}), 0) FROM oncebox_minute_counter")[0][0])


def ids(world: World) -> list[str]:
    return sorted(row[0] for row in world.query("SELECT message_id FROM oncebox_inbox"))


def let_days_pass(world: World, days: int) -> None:
    for table, column in (
        ("inbox", "received_at"),
        ("minute_counter", "minute"),
        ("attempt", "ended_at"),
    ):
        earlier = f"interval '{days} days'" if world.is_postgres else f"{days} * 86400000000"
        world.execute(f"UPDATE oncebox_{table} SET {column} = {column} - {earlier}")


def purge(caller: Caller) -> Any:
    keeping = caller.inbox.purge
    return caller.world.run(keeping.arun()) if caller.world.is_async else keeping.run()


# -- counted and purged ---------------------------------------------------------------------------


@pytest.mark.only(NOT_DJANGO)
def test_claims_are_counted(caller: Caller) -> None:
    assert caller.claim("a")
    assert not caller.claim("a")
    assert caller.claim_many(["a", "b", "c"]) == [False, True, True]
    caller.commit()
    assert [count(caller, name) for name in ("received", "done", "duplicate")] == [5, 3, 2]


@pytest.mark.only(ALL, quick=SOME)
def test_only_duplicates_are_written_to_the_counters(caller: Caller) -> None:
    """The rows of the inbox count the new ones, so that a claim is one INSERT."""
    caller.claim_many(["a", "b"])
    assert not caller.claim("a")
    assert caller.claim_many(["a", "b"]) == [False, False]
    caller.commit()
    world = caller.world
    assert [count_rows(world, name) for name in ("received", "done", "duplicate")] == [3, 0, 3]


@pytest.mark.only(BOTH)
def test_a_claim_that_is_refused_is_not_counted(caller: Caller) -> None:
    caller.claim("a", payload=b"one")
    with pytest.raises(PayloadMismatch):
        caller.claim("a", payload=b"two")
    caller.commit()
    assert [count(caller, name) for name in ("received", "duplicate")] == [1, 0]


@pytest.mark.only(ALL, quick=SOME)
def test_a_claim_that_is_rolled_back_is_not_counted(caller: Caller) -> None:
    caller.claim_many(["a", "b"])
    caller.claim("a")
    caller.rollback()
    assert count_rows(caller.world, "received") == 0
    assert ids(caller.world) == []


@pytest.mark.only(NOT_DJANGO)
def test_an_inbox_that_is_used_only_through_claim_is_purged(caller: Caller) -> None:
    caller.claim_many(["a", "b"])
    caller.commit()
    let_days_pass(caller.world, 10)
    caller.begin()
    caller.claim("c")
    caller.commit()
    assert purge(caller).purged == 2
    assert ids(caller.world) == ["c"]


@pytest.mark.only(BOTH)
def test_claims_show_in_the_status(caller: Caller) -> None:
    caller.claim_many(["a", "b"])
    caller.claim("a")
    caller.commit()
    rates = caller.inbox.status().rates[5]
    assert (rates.received, rates.duplicate) == (3, 1)


@pytest.mark.only(("psycopg",))
def test_no_duplicate_waits_for_the_counters_of_another(world: World) -> None:
    """Transactions that are open at the same time count in rows of their own."""
    inbox = world.inbox()
    with psycopg.connect(world.url) as one, psycopg.connect(world.url) as other:
        other.execute("SET lock_timeout = '5s'")
        assert inbox.claim_many(one, ["a", "b", "c"]) == [True] * 3
        one.commit()
        assert not inbox.claim(one, "a")
        assert not inbox.claim(other, "b")
        other.commit()
        assert not inbox.claim(other, "c")
        other.commit()
        one.commit()
        assert not inbox.claim(one, "c")
    assert count_rows(world, "duplicate") == 4
    workers = world.query("SELECT worker FROM oncebox_minute_counter")
    assert len(workers) <= 3


@pytest.mark.only(("psycopg",))
def test_a_stricter_level_counts_duplicates_without_conflicts(world: World) -> None:
    inbox = world.inbox()
    with psycopg.connect(world.url) as one, psycopg.connect(world.url) as other:
        assert inbox.claim(one, "a")
        one.commit()
        for connection in (one, other):
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")
        assert not inbox.claim(one, "a", accept_retries=True)
        assert inbox.claim(one, "a2", accept_retries=True)
        one.commit()
        assert not inbox.claim(other, "a", accept_retries=True)
    assert count_rows(world, "duplicate") == 2


@pytest.mark.only(("psycopg",))
def test_counters_of_many_duplicates_stay_few(world: World) -> None:
    """No more rows than there are transactions at a time, per minute."""
    inbox = world.inbox()
    with psycopg.connect(world.url) as connection:
        inbox.claim(connection, "a")

    def work() -> None:
        with psycopg.connect(world.url) as connection:
            for _ in range(25):
                inbox.claim(connection, "a")
                connection.commit()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count_rows(world, "duplicate") == 100
    assert len(world.query("SELECT 1 FROM oncebox_minute_counter")) <= 16


# -- messages that fail every time -----------------------------------------------------------------


@pytest.mark.only(ALL, quick=SOME)
def test_a_message_that_fails_again_and_again_becomes_a_dead_letter(caller: Caller) -> None:
    for expected in (1, 2, None):
        assert caller.claim("a")
        caller.rollback()
        caller.begin()
        delay = caller.failed("a", BOOM, payload=b"{}", type="order")
        assert delay == (None if expected is None else timedelta(seconds=expected))
        caller.commit()
        caller.begin()
    assert caller.claim("a") is False, "it is not to be run"
    letters = caller.world.query(
        "SELECT message_id, reason, attempts, payload FROM oncebox_dead_letter"
    )
    assert [(row[0], row[1], row[2], bytes(row[3])) for row in letters] == [
        ("a", "out_of_attempts", 3, b"{}")
    ]
    attempts = caller.world.query("SELECT number, outcome FROM oncebox_attempt ORDER BY number")
    assert attempts == [(1, "failed"), (2, "failed"), (3, "dead")]


@pytest.mark.only(SOME)
def test_a_rejected_message_becomes_a_dead_letter_at_once(caller: Caller) -> None:
    assert caller.failed("a", Reject("no")) is None
    caller.commit()
    assert caller.world.query("SELECT reason FROM oncebox_dead_letter") == [("rejected",)]


@pytest.mark.only(SOME)
def test_a_failure_of_a_message_that_another_worker_finished_changes_nothing(
    caller: Caller,
) -> None:
    caller.claim("a")
    caller.commit()
    caller.begin()
    assert caller.failed("a", Reject("no")) is None
    caller.commit()
    assert caller.world.query("SELECT reason FROM oncebox_dead_letter") == []


@pytest.mark.only(SOME)
def test_a_failure_that_is_rolled_back_is_not_counted(caller: Caller) -> None:
    caller.failed("a", BOOM)
    caller.rollback()
    assert caller.world.query("SELECT 1 FROM oncebox_attempt") == []


@pytest.mark.only(NOT_DJANGO)
def test_failures_of_messages_that_never_came_again_are_purged(caller: Caller) -> None:
    caller.failed("a", BOOM)
    caller.commit()
    let_days_pass(caller.world, 10)
    caller.begin()
    caller.claim("b")
    caller.commit()
    purge(caller)
    assert caller.world.query("SELECT 1 FROM oncebox_attempt") == []


@pytest.mark.only(BOTH)
def test_failed_takes_an_exception(caller: Caller) -> None:
    with pytest.raises(ClaimError, match="takes the exception, got str"):
        caller.failed("a", "boom")  # type: ignore[arg-type]


@pytest.mark.only(BOTH)
def test_hooks_are_notified_of_a_dead_letter_of_a_custom_loop(world: World) -> None:
    told: list[str] = []

    def note(letter: Any) -> None:
        told.append(letter.message_id)

    inbox: Inbox = world.inbox(on_dead=note)
    inbox.on("order")(lambda payload: None)
    for caller in connected(Caller(world, inbox)):
        caller.failed("a", Reject("no"), payload=b"{}")
        caller.commit()
    inbox.drain()
    assert told == ["a"]
