"""A replay is cancelled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import oncebox.processing.drain
import oncebox.storage.drivers.transactions
from oncebox import Reject
from oncebox.processing.routing import select_batch
from oncebox.storage.sql import replays as replaying
from support.inboxes import keyed
from support.replays import SLOW, ReplayHarness, held, is_over, make_due
from support.services import wait_until
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)


def test_a_replay_that_is_cancelled_before_it_stores_anything_runs_nothing(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("1"), keyed("2"), order("3"))
    harness.start()
    cancelled = harness.cancel()
    assert (cancelled.state, cancelled.total, cancelled.is_over) == ("cancelled", 3, True)
    assert cancelled.ended_at is not None
    assert harness.drain() == {}
    assert harness.far() == {"cancelled": 3}
    assert world.effects() == ["1", "2", "3"]
    assert world.query("SELECT count(*) FROM oncebox_replay_item") == [(0,)]


@pytest.mark.parametrize("fed", [False, True])
def test_finished_messages_of_a_cancelled_replay_stay_done(
    world: World, harness: ReplayHarness, fed: bool
) -> None:
    harness.past(keyed("1"), keyed("2"), order("3"), keyed("4"))
    harness.start(pace=SLOW, type="order")
    assert harness.drain() == {"done": 1}
    if fed:
        harness.replays("set_pace", "again", None, why="now")
        assert harness.feed()
        assert harness.far() == {"done": 1, "waiting": 3}
        assert harness.process(keyed("new")) == ["blocked"]
    assert harness.cancel().state == "cancelled"
    assert harness.far() == {"done": 1, "cancelled": 3}
    assert harness.drain() == ({"done": 1} if fed else {})
    assert world.effects() == ["1", "1", "2", "3", "4", *(["new"] if fed else [])]


def test_many_messages_of_a_cancelled_replay_are_removed_in_chunks(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.past(*[keyed(str(n), f"k{n % 3}" if n % 2 else None) for n in range(9)])
    harness.start()
    assert harness.feed()
    assert len(world.pending()) == 9
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    assert harness.cancel().state == "cancelled"
    assert harness.far() == {"cancelled": 9}
    assert world.pending() == []


@pytest.mark.only(("psycopg",))
def test_a_message_that_runs_while_its_replay_is_cancelled_finishes(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("1"), keyed("2"), keyed("3"), order("4"))
    harness.start(ids=["1", "2", "3"])
    with held(harness, "1", lambda: harness.drain(batch=1)):
        assert harness.cancel().state == "cancelling"
        assert harness.far() == {"waiting": 1, "cancelled": 2}
        assert harness.process(keyed("new")) == ["blocked"]
    wait_until(lambda: is_over(harness), "it is not cancelled")
    assert harness.replays("get", "again").state == "cancelled"
    assert harness.far() == {"done": 1, "cancelled": 2}
    assert world.effects() == ["1", "1", "2", "3", "4", "new"]


@pytest.mark.only(("psycopg",))
def test_a_message_that_fails_while_its_replay_is_cancelled_is_not_a_dead_letter(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("1"), keyed("2"))
    harness.bad["1"] = Reject()
    harness.start()
    with held(harness, "1", lambda: harness.drain(batch=1)):
        assert harness.cancel().state == "cancelling"
        assert harness.process(keyed("new")) == ["blocked"]
    wait_until(lambda: is_over(harness), "it is not cancelled")
    assert harness.far() == {"cancelled": 2}
    assert harness.dead("find") == []
    assert world.effects() == ["1", "2", "new"]


@pytest.mark.only(("sqlite3",))
def test_on_sqlite_a_cancel_waits_for_the_running_message(
    world: World, harness: ReplayHarness
) -> None:
    total = 60
    harness.past(*[keyed(str(n)) for n in range(total)])
    harness.start()
    cancel = world.inbox(migrate=False).replays.cancel
    with ThreadPoolExecutor(1) as others:
        with held(harness, "0", lambda: harness.drain(batch=1)):
            cancelling = others.submit(cancel, "again", why="x")
        error = cancelling.exception()
    far = harness.far()
    done = far["done"]
    if error is not None:  # on a busy machine the drain may finish before the cancel begins
        assert "has ended" in str(error)
        assert done == total
    assert far.get("cancelled", 0) == total - done
    assert len(world.effects()) == total + done
    assert harness.drain() == {}


def test_a_batch_whose_replay_is_cancelled_after_the_take_is_not_run(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay is cancelled between the take and the removal of its messages."""
    harness.past(keyed("1"), keyed("2"))
    harness.start()
    harness.feed()

    def late(rows: Any) -> Any:
        monkeypatch.setattr(oncebox.processing.drain, "select_batch", select_batch)
        if world.is_postgres:
            world.inbox(migrate=False).replays.cancel("again", why="a mistake")
        return select_batch(rows)

    monkeypatch.setattr(oncebox.processing.drain, "select_batch", late)
    monkeypatch.setattr(oncebox.storage.drivers.transactions, "RETRY_DELAYS", (0.001,) * 4)
    done = {} if world.is_postgres else {"done": 2}
    assert harness.drain() == done
    assert harness.far() == (done or {"cancelled": 2})
    assert harness.dead("find") == []


@pytest.mark.parametrize("fed", [False, True])
def test_a_replay_is_cancelled_while_workers_run_it(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch, fed: bool
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 1)
    monkeypatch.setattr(replaying, "READY_LIMIT", 2)
    harness.past(*[order(str(n)) for n in range(5)])
    harness.start("first")
    harness.start("second")
    while fed and harness.feed():
        pass
    waiting = harness.far("first")
    make_due(world)
    assert harness.cancel("second").state == "cancelled"
    assert harness.far("second") == {"cancelled": 5}
    assert harness.far("first") == waiting, "whose cancel it is not"
    assert harness.drain() == {"done": 5}
    assert harness.far("first") == {"done": 5}
