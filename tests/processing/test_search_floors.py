"""A worker that begins to search at its floors finds what a search from the beginning finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

import oncebox.processing.search_floors
from oncebox import Reject
from oncebox.processing.drain import Drain
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import Floors, TakenBatch
from oncebox.storage.steps import run
from support.inboxes import LATER, InboxHarness, keyed
from support.internals import database_of, drain_of, signed_on_worker, store_of
from support.services import wait_until
from support.tables import make_retries_due
from support.worlds import ON_POSTGRES, World, order

pytestmark = [pytest.mark.only(("psycopg",)), pytest.mark.empty_database]

VISITED = """
SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint
FROM pg_index WHERE indrelid = 'oncebox_pending'::regclass"""
MANY = 1000


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors are used from the beginning, and raised in every step."""
    monkeypatch.setattr(oncebox.processing.search_floors, "IN_A_ROW", 0)
    monkeypatch.setattr(oncebox.processing.search_floors, "RAISE_EVERY", 0.0)


@pytest.fixture
def harness(world: World) -> InboxHarness:
    return InboxHarness(world)


@pytest.fixture
def drain(harness: InboxHarness) -> Iterator[Drain]:
    with drainer(harness) as drain:
        yield drain


@contextmanager
def drainer(harness: InboxHarness) -> Iterator[Drain]:
    """A worker that goes step by step."""
    with signed_on_worker(harness.inbox, 100) as worker:
        drain = drain_of(harness.inbox, worker)
        run(drain.sign_on())
        yield drain
        run(drain.sign_off())


def drain_all(drain: Drain) -> None:
    """Step until nothing is ready, and on until everything that was drawn is below the floors."""
    while not run(drain.step()).idle:
        pass
    for _ in range(3):
        assert run(drain.step()).idle


def floor(drain: Drain) -> int:
    """The lowest floor of all lanes."""
    lanes = drain._floors._known.lanes
    assert lanes is not None
    return min(lanes)


@contextmanager
def old_snapshot(world: World) -> Iterator[None]:
    """A transaction, such as a report's, that sees the database as it is now until the end."""
    with psycopg.connect(world.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM oncebox_pending")
        yield
        connection.rollback()


def count_visits(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many index entries of pending messages each take() visits, from now on."""
    visits: list[int] = []
    take = drain._store.take

    def counted(work: Any, *args: Any, **options: Any) -> Any:
        before = (yield from work.fetch(VISITED, {}))[0][0]
        taken = yield from take(work, *args, **options)
        visits.append((yield from work.fetch(VISITED, {}))[0][0] - before)
        return taken

    monkeypatch.setattr(drain._store, "take", counted)
    return visits


# -- what it is for -------------------------------------------------------------------------------


def test_an_idle_poll_does_not_visit_rows_that_an_old_snapshot_keeps(
    world: World, harness: InboxHarness, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, MANY, 200):
        harness.receive(*(keyed(str(n), f"k{n % 97}") for n in range(first, first + 200)))
    with old_snapshot(world):
        drain_all(drain)
        visits = count_visits(drain, monkeypatch)
        assert run(drain.step()).idle
        assert visits.pop() < MANY / 10
        harness.receive(keyed("new"))
        assert len(run(drain.step()).outcomes) == 1
        assert visits.pop() < MANY / 10, "nor does a poll that finds something"


def test_an_idle_poll_does_not_visit_retries_that_an_old_snapshot_keeps(
    world: World, drain: Drain, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.receive(*(order(str(n)) for n in range(MANY)))
    world.execute("UPDATE oncebox_pending SET available_at = clock_timestamp()")
    with old_snapshot(world):
        world.execute("DELETE FROM oncebox_pending")
        drain_all(drain)
        visits = count_visits(drain, monkeypatch)
        assert run(drain.step()).idle
        assert visits.pop() < MANY / 10


@pytest.mark.only(ON_POSTGRES)
def test_every_adapter_begins_at_floors(
    world: World, harness: InboxHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = store_of(harness.inbox)
    take, used = store.take, []

    def noted(*args: Any, floors: Floors, **options: Any) -> Any:
        used.append(floors.lanes is not None)
        return (yield from take(*args, floors=floors, **options))

    monkeypatch.setattr(store, "take", noted)
    harness.receive(*(keyed(str(n)) for n in range(6)))
    assert harness.drain(batch=1) == {"done": 6}
    assert harness.ran() == ["0", "1", "2", "3", "4", "5"]
    assert used.count(True) > 3


def test_floors_are_used_once_searches_are_slow_and_as_long_as_they_are(
    world: World, harness: InboxHarness, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oncebox.processing.search_floors, "IN_A_ROW", 3)
    for first in range(0, 2 * MANY, 200):
        harness.receive(*(keyed(str(n), f"k{n % 97}") for n in range(first, first + 200)))
    with old_snapshot(world):
        while not run(drain.step()).idle:
            pass
        for _ in range(5):
            assert run(drain.step()).idle
        assert floor(drain) > 0
        visits = count_visits(drain, monkeypatch)
        drain._floors._use_until = 0  # a minute has passed
        for _ in range(2):
            assert run(drain.step()).idle
        assert visits[0] > 2 * MANY, "it searched from the beginning"
        assert visits[1] < MANY / 10
    for _ in range(
        2
    ):  # the first search marks the deleted rows in the index, the second skips them
        drain._floors._use_until = 0
        assert run(drain.step()).idle
    assert drain._floors.floors.lanes is None


# -- what must not be missed ----------------------------------------------------------------------


WAIT_BEFORE_INSERT = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1);
  RETURN NEW;
END $$;
CREATE TRIGGER wait BEFORE INSERT ON oncebox_inbox FOR EACH ROW
WHEN (NEW.message_id = 'late') EXECUTE FUNCTION wait()"""


def test_a_message_that_is_committed_late_is_found(
    world: World, harness: InboxHarness, drain: Drain
) -> None:
    """Its number is drawn, and its row not even inserted, while later ones are done."""
    harness.receive(order("first"))
    drain_all(drain)
    world.execute(WAIT_BEFORE_INSERT)
    with psycopg.connect(world.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(1)")
        late = threading.Thread(target=harness.receive, args=[order("late")])
        late.start()
        wait_until(lambda: waits(world), "receive() does not wait")
        harness.receive(order("early"))
        drain_all(drain)
        assert harness.ran() == ["first", "early"]
        drawn = world.query("SELECT last_value FROM oncebox_seq")[0][0]
        assert floor(drain) < drawn - 1, "a lower number is not committed yet"
        other.rollback()
    late.join()
    drain_all(drain)
    assert harness.ran() == ["late"]
    assert floor(drain) == drawn


def test_floors_wait_for_a_seq_of_the_newest_transaction(
    world: World, harness: InboxHarness, drain: Drain
) -> None:
    """No transaction after it has ended, so pg_snapshot_xmax() is not above its id."""
    harness.receive(order("first"))
    drain_all(drain)
    with psycopg.connect(world.url) as other:
        other.execute("SELECT pg_current_xact_id()")
        seq = other.execute("SELECT nextval('oncebox_seq')").fetchall()[0][0]
        for _ in range(3):
            assert run(drain.step()).idle
        assert floor(drain) < seq
        other.execute(
            "INSERT INTO oncebox_pending (consumer, lane, seq, origin, message_id, type, version, "
            "payload, source, fresh) SELECT consumer, 0, %s, origin, 'late', type, version, "
            "'{\"id\": \"late\"}', 'test', true FROM oncebox_inbox",
            [seq],
        )
    drain_all(drain)
    assert harness.ran() == ["first", "late"]


def waits(world: World) -> bool:
    return bool(world.query("SELECT 1 FROM pg_locks WHERE NOT granted"))


def test_a_retried_head_and_its_followers_run_in_order(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError()
    with drainer(harness) as drain:
        harness.receive(keyed("1"), keyed("2"))
        drain_all(drain)
        harness.receive(keyed("other", "o"))
        drain_all(drain)
        assert harness.ran() == ["1", "other"]
        make_retries_due(world)
        harness.bad.clear()
        harness.receive(keyed("3"))
        drain_all(drain)
    assert harness.ran() == ["1", "2", "3"]


@pytest.mark.parametrize("key", ["k", None])
def test_a_retried_dead_letter_runs_before_later_messages_of_its_key(
    harness: InboxHarness, drain: Drain, key: str | None
) -> None:
    harness.bad["1"] = Reject()
    harness.receive(keyed("1", key), keyed("2", key))
    drain_all(drain)
    harness.ran()
    harness.bad.clear()
    harness.dead("retry", everything=True, why="fixed")
    harness.receive(keyed("3", key))
    drain_all(drain)
    ran = harness.ran()
    assert ran == ["1", "2", "3"] if key else sorted(ran) == ["1", "3"]


def test_a_message_behind_a_discarded_dead_letter_is_found(
    harness: InboxHarness, drain: Drain
) -> None:
    harness.bad["1"] = Reject()
    harness.receive(keyed("1"), keyed("2"))
    drain_all(drain)
    harness.dead("discard", everything=True, why="noise")
    harness.receive(keyed("3"))
    drain_all(drain)
    assert harness.ran() == ["1", "2", "3"]


def test_a_message_that_another_worker_returns_is_found(
    harness: InboxHarness, drain: Drain
) -> None:
    harness.receive(keyed("0", "first"))
    drain_all(drain)
    harness.receive(keyed("1"))
    harness.receive(keyed("2", "other"))
    with taken_by_another(harness, limit=1) as rows:
        (row,) = rows
        drain_all(drain)
        assert floor(drain) < row.seq
    harness.receive(keyed("3"), keyed("4", "other"))
    drain_all(drain)
    ran = harness.ran()
    assert sorted(ran) == ["0", "1", "2", "3", "4"]
    assert ran.index("1") < ran.index("3")
    assert ran.index("2") < ran.index("4")


@contextmanager
def taken_by_another(harness: InboxHarness, *, limit: int) -> Iterator[Sequence[Any]]:
    """Another worker has taken messages out; it rolls back, and is alive."""
    database: Any = database_of(harness.inbox)
    store: Any = store_of(harness.inbox)
    with signed_on_worker(harness.inbox, limit) as worker:
        work = database.work()
        run(database.acquire(work))
        run(work.begin())
        taken: TakenBatch = run(store.take(work, "billing", worker))
        run(store.remove(work, taken.rows))
        yield taken.rows
        run(work.rollback())
        run(database.release(work))
        clear_crash_evidence = partial(
            store.clear_crash_evidence, consumer="billing", rows=taken.rows, token=taken.token
        )
        run(run_transaction(database, clear_crash_evidence))


def test_a_replay_is_found(harness: InboxHarness, drain: Drain) -> None:
    harness.receive(keyed("1"), keyed("2"))
    drain_all(drain)
    assert harness.ran() == ["1", "2"]
    harness.inbox.replays.start("again", ids=["1", "2"], why="a test")

    maintenance = harness.inbox._maintenance(drain, once=True)

    def has_run() -> bool:
        run(maintenance.step(is_idle=True))
        run(drain.step())
        return len(harness.runs) == 2

    wait_until(has_run, "the replay does not run")
    assert harness.ran() == ["1", "2"]


def test_a_message_that_may_crash_the_process_is_found(harness: InboxHarness, drain: Drain) -> None:
    harness.receive(keyed("0", "other"))
    drain_all(drain)
    suspect = msgspec.structs.replace(keyed("1"), redelivered=True)
    harness.receive(suspect, keyed("2"))
    drain_all(drain)
    assert harness.ran() == ["0", "1", "2"]


def test_a_postponed_message_is_found(world: World, harness: InboxHarness, drain: Drain) -> None:
    """Another message that may crash the process was running: this one had to wait."""
    harness.receive(msgspec.structs.replace(keyed("1"), redelivered=True))
    database: Any = database_of(harness.inbox)
    store: Any = store_of(harness.inbox)

    def postpone(work: Any) -> Any:
        taken = yield from store.take(work, "billing", drain.worker)
        yield from store.postpone(work, "billing", taken.rows[0], delay=3600)

    run(run_transaction(database, postpone))
    harness.receive(keyed("2"), keyed("other", "o"))
    drain_all(drain)
    assert harness.ran() == ["other"]
    make_retries_due(world)
    drain_all(drain)
    assert harness.ran() == ["1", "2"]


@pytest.mark.parametrize("is_raised", [False, True])
def test_the_floors_of_another_server_do_not_count(
    world: World, harness: InboxHarness, drain: Drain, is_raised: bool
) -> None:
    """A replica that took over may have lost numbers that were drawn: they are drawn again."""
    harness.receive(*(keyed(str(n)) for n in range(10)))
    drain_all(drain)
    harness.ran()
    server = drain._floors._known.server
    assert isinstance(server, datetime)
    drain._floors._known = msgspec.structs.replace(
        drain._floors._known, server=server - timedelta(days=1)
    )
    if not is_raised:  # the server changes between raise_floors() and take()
        drain._floors._raise_at = float("inf")
    world.execute("DELETE FROM oncebox_inbox")
    world.execute("SELECT setval('oncebox_seq', 1)")
    harness.receive(keyed("a"))
    drain_all(drain)
    assert harness.ran() == ["a"]


def test_floors_are_raised_first_in_a_transaction(harness: InboxHarness, drain: Drain) -> None:
    """Its id must be higher than those of all who drew a number."""
    store: Any = store_of(harness.inbox)

    def late(work: Any) -> Any:
        yield from work.fetch("SELECT pg_current_xact_id()::text", {})
        return (yield from store.raise_floors(work, "billing", drain.worker, drain._floors._known))

    with pytest.raises(psycopg.errors.RaiseException, match="has not written yet"):
        run(run_transaction(database_of(harness.inbox), late))
