"""Replays and purges do not get in the way of each other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest

from oncebox import Inbox, Reject, Retention
from oncebox.model.replay import Replay
from support.inboxes import keyed, produced, purge
from support.internals import store_of
from support.replays import HOUR, SYNC_AND_ASYNC, ReplayHarness
from support.services import wait_until
from support.tables import age, make_retries_due, message_ids
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_messages_erased_since_the_start_of_a_replay_are_skipped_and_counted(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("1"), keyed("erased"), keyed("2"), keyed("pruned"), keyed("3"))
    harness.start()
    world.execute("UPDATE oncebox_inbox SET payload = NULL WHERE message_id = 'erased'")
    world.execute("DELETE FROM oncebox_inbox WHERE message_id = 'pruned'")
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["1", "2", "3"]
    assert harness.far() == {"done": 3, "skipped": 2}
    replay = harness.replays("get", "again")
    assert (replay.is_over, replay.total, replay.stored) == (True, 5, 3)


def test_a_replay_whose_messages_were_deleted_ends(world: World, harness: ReplayHarness) -> None:
    harness.past(keyed("1"), order("2"))
    harness.start()
    world.execute("DELETE FROM oncebox_inbox")
    assert harness.drain() == {}
    assert harness.far() == {"skipped": 2}
    assert harness.replays("get", "again").is_over


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_a_message_of_a_replay_is_not_purged(world: World, harness: ReplayHarness) -> None:
    old = ["dead", "pending", "replayed"]
    harness.past(*[produced(id, key=id) for id in old], produced("other"))
    age(world, 8)
    harness.past(produced("new"))
    harness.start(ids=["replayed", "pending", "dead"])
    assert purge(world, harness.inbox).purged == 1
    assert message_ids(world) == sorted([*old, "new"])
    harness.bad["dead"] = Reject()
    harness.feed()
    assert purge(world, harness.inbox).purged == 0
    world.execute(
        "UPDATE oncebox_pending SET available_at = %s WHERE message_id = 'pending'",
        datetime.now(UTC) + HOUR if world.is_postgres else 2**62,
    )
    harness.drain()
    assert harness.far() == {"done": 1, "dead": 1, "waiting": 1}
    assert purge(world, harness.inbox).purged == 1
    assert message_ids(world) == ["dead", "new", "pending"]
    make_retries_due(world)
    harness.drain()
    harness.dead("discard", everything=True, why="a test")
    assert purge(world, harness.inbox).purged == 2
    assert message_ids(world) == ["new"]
    assert harness.far() == {"done": 2, "discarded": 1}


@pytest.mark.only(("psycopg",))
def test_nothing_is_purged_while_a_replay_begins(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge cannot see yet which messages the replay selects."""
    _grow_old(world, harness)
    store: Any = store_of(harness.inbox)
    audit = store._audit
    counts: list[int] = []

    def slowly(*args: Any) -> Generator[Any, Any, Any]:
        counts.append(purge(world, ReplayHarness(world).inbox).purged)
        return (yield from audit(*args))

    monkeypatch.setattr(store, "_audit", slowly)
    harness.start(ids=["old"])
    assert counts == [0]
    assert harness.drain() == {"done": 1}
    assert harness.far() == {"done": 1}
    assert purge(world, harness.inbox).purged == 1
    assert world.query("SELECT count(*) FROM oncebox_attempt") == [(0,)]


@pytest.mark.only(("psycopg",))
@pytest.mark.parametrize("way", ["purge", "purge_archived"])
def test_a_message_purged_while_a_replay_begins_is_not_replayed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It never runs: the record of that run would never be purged."""
    archive = str(tmp_path / "archive") if way == "purge_archived" else None
    harness = ReplayHarness(world, retention=Retention(archive=archive))
    _grow_old(world, harness)
    store: Any = store_of(harness.inbox)
    purge_rows = getattr(store, way)
    with ThreadPoolExecutor(1) as others:
        begun: list[Future[Replay]] = []

        def slowly(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            count = yield from purge_rows(*args, **options)
            begun.append(others.submit(ReplayHarness(world).start, ids=["old"]))
            wait_until(lambda: begun[0].done() or _waits_for_lock(world), "no transaction waits")
            return count

        monkeypatch.setattr(store, way, slowly)
        assert purge(world, harness.inbox).purged == 1
        assert begun[0].result().total == 0
    assert harness.drain() == {}
    assert message_ids(world) == ["new"]


@pytest.mark.only(("psycopg",))
def test_a_purged_message_is_not_replayed_at_any_isolation_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay that waited for a purge sees which messages were purged."""
    harness = ReplayHarness(world)
    _grow_old(world, harness)
    store: Any = store_of(harness.inbox)
    purge_rows = store.purge
    begun: list[Future[Replay]] = []
    with _strict_pool(world) as pool, ThreadPoolExecutor(1) as others:
        other = Inbox("billing", pool)
        start = partial(other.replays.start, "strict", why="a test", ids=["old"])

        def slowly(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            count = yield from purge_rows(*args, **options)
            begun.append(others.submit(start))
            wait_until(lambda: begun[0].done() or _waits_for_lock(world), "no transaction waits")
            return count

        monkeypatch.setattr(store, "purge", slowly)
        assert purge(world, harness.inbox).purged == 1
        assert begun[0].result().total == 0
        other.close()


@pytest.mark.only(("psycopg",))
def test_a_message_of_a_replay_is_not_purged_at_any_isolation_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge sees a replay that began before it had the lock."""
    harness = ReplayHarness(world)
    _grow_old(world, harness)
    with _strict_pool(world) as pool:
        other = Inbox("billing", pool, retention=Retention())
        store: Any = store_of(other)
        limit_lock_wait = store._limit_lock_wait

        def slowly(connection: Any) -> Iterator[Any]:
            yield from limit_lock_wait(connection)
            if not world.query("SELECT 1 FROM oncebox_replay"):
                harness.start(ids=["old"])

        monkeypatch.setattr(store, "_limit_lock_wait", slowly)
        assert other.purge.run().purged == 0
        other.close()
    assert harness.drain() == {"done": 1}


def _strict_pool(world: World) -> psycopg_pool.ConnectionPool:
    def configure(connection: psycopg.Connection) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    return psycopg_pool.ConnectionPool(world.url, configure=configure, open=True)


def _grow_old(world: World, harness: ReplayHarness) -> None:
    """Make one message old enough to be purged."""
    harness.past(produced("old"))
    age(world, 8)
    harness.past(produced("new"))


def _waits_for_lock(world: World) -> bool:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return bool(world.query(waiting)[0][0])
