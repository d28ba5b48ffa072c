"""A batch that cannot be committed is rolled back, and only the bad message fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import event as sqlalchemy_event

import oncebox.processing.crash_isolation
import oncebox.processing.drain
import oncebox.storage.drivers.transactions
from support.inboxes import LATER, InboxHarness, keyed
from support.internals import store_of
from support.tables import attempts
from support.transactions import Conflict, enforce_foreign_keys, good_and_bad
from support.worlds import BOTH, SOME, SQLALCHEMY, World, order


def assert_only_bad_fails(world: World, culprit: Callable[[Any], Iterator[Any]]) -> None:
    """Assert that of a drained batch only the bad message fails, and nothing of its work stays."""
    inbox = world.inbox(retry=LATER)
    world.on(inbox, "order", good_and_bad(culprit))
    batch = [keyed("a", "1"), keyed("bad", "2"), keyed("c", "3"), keyed("later", "2")]
    assert world.receive(inbox, batch) == ["stored"] * 4
    assert world.drain(inbox) in ({"done": 2, "failed": 1, "blocked": 1}, {"done": 2, "failed": 1})
    assert world.effects() == ["a", "c"]
    assert world.pending() == [("bad", 1, "retrying"), ("later", 0, "blocked")]
    assert world.query("SELECT count(*) FROM oncebox_pending WHERE crashes > 0") == [(0,)]


def test_a_deferred_constraint_fails_only_its_stored_message(world: World) -> None:
    world.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    world.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )

    def orphan(tx: Any) -> Iterator[Any]:
        yield tx.execute("INSERT INTO children (parent) VALUES (:parent)", parent=404)

    if world.name in SQLALCHEMY and not world.is_postgres:
        engine = world.database()
        sqlalchemy_event.listen(
            getattr(engine, "sync_engine", engine), "connect", enforce_foreign_keys
        )
    assert_only_bad_fails(world, orphan)


@pytest.mark.parametrize("method", ["commit", "rollback"])
@pytest.mark.only((*SOME, "sqlalchemy-psycopg"))
def test_a_stored_message_that_ends_the_transaction_fails_without_the_others(
    world: World, method: str
) -> None:
    def end(tx: Any) -> Iterator[Any]:
        yield getattr(tx.connection, method)()

    assert_only_bad_fails(world, end)


@pytest.mark.only(("psycopg",))
def test_a_swallowed_error_fails_only_its_stored_message(world: World) -> None:
    def swallow(tx: Any) -> Generator[Any, Any, Any]:
        with contextlib.suppress(Exception):
            yield (yield tx.execute("SELECT 1 / 0")).rows()

    assert_only_bad_fails(world, swallow)


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("redelivered", [False, True])
def test_stored_messages_whose_transaction_was_committed_past_every_guard_are_dead_letters(
    world: World, redelivered: bool
) -> None:
    """Their rows are gone, "c" was never run, and it is unknown what of "bad" is done."""

    def commit(tx: Any) -> Iterator[Any]:
        yield from ()
        psycopg.Cursor(tx.connection).execute("COMMIT")
        raise ValueError

    inbox = world.inbox(retry=LATER)
    world.on(inbox, "order", good_and_bad(commit))
    batch = [keyed("a", "1"), keyed("bad", "2"), keyed("c", "3")]
    world.receive(inbox, [msgspec.structs.replace(d, redelivered=redelivered) for d in batch])
    lost = {("bad", "transaction_lost")} if redelivered else {(d, "transaction_lost") for d in IDS}
    counts = world.drain(inbox)
    assert counts["dead"] == len(lost)
    found = world.query("SELECT message_id, reason FROM oncebox_dead_letter")
    assert set(found) == lost
    assert set(world.effects()) == {"a", "bad", "c"} if redelivered else {"a", "bad"}


IDS = ("a", "bad", "c")


@pytest.mark.only(SOME)
def test_a_drained_batch_that_conflicts_is_run_again_and_not_counted(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.001,) * 4)
    left = [Conflict(), Conflict()]

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        if left:
            raise left.pop()

    world.on(harness.inbox, "shaky", good_and_bad(conflict))
    harness.receive(keyed("a"), keyed("bad", type="shaky"), keyed("c"))
    assert harness.drain() == {"done": 3}
    assert not left
    assert world.effects() == ["a", "bad", "c"]
    assert sorted(attempts(world)) == [("a", 1, "done"), ("bad", 1, "done"), ("c", 1, "done")]


@pytest.mark.only((*BOTH, "psycopg-async"))
def test_a_message_that_always_conflicts_fails_without_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.001,) * 4)

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        raise Conflict

    assert_only_bad_fails(world, conflict)


@pytest.mark.only(("psycopg", "psycopg-async", "sqlalchemy-psycopg", "django-postgres"))
def test_a_rolled_back_batch_is_not_taken_for_a_crash(
    world: World,
    harness: InboxHarness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.001,) * 4)
    left = [Conflict()]

    def conflict(tx: Any) -> Iterator[Any]:
        yield from ()
        if left:
            raise left.pop()

    world.on(harness.inbox, "shaky", good_and_bad(conflict))
    harness.receive(keyed("bad", type="shaky"))
    assert harness.drain() == {"done": 1}
    assert "a worker crashed" not in caplog.text
    assert "retrying it" in caplog.text


@pytest.mark.only(("psycopg",))
def test_lanes_that_were_locked_without_work_are_not_taken_for_a_crash(
    world: World,
    harness: InboxHarness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was taken and cut off is left where it was; the lock of its lane left a trace."""
    harness.receive(*(order(f"m{n}", key=f"k{n}") for n in range(6)))
    monkeypatch.setattr(oncebox.processing.drain, "select_batch", lambda rows: rows[:1])
    record = store_of(harness.inbox).record

    def conflict(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(store_of(harness.inbox), "record", record)
        raise Conflict
        yield

    monkeypatch.setattr(store_of(harness.inbox), "record", conflict)
    assert harness.drain() == {"done": 6}
    assert "retrying it" in caplog.text
    assert "a worker crashed" not in caplog.text
