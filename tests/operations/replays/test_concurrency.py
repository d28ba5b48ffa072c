"""Several workers feed a replay."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from oncebox import Delivery, Message
from oncebox.errors import ConfigurationError
from oncebox.storage.drivers.transactions import read
from oncebox.storage.records import PendingMessage
from oncebox.storage.steps import Steps, run
from support.inboxes import keyed
from support.internals import open_database, store_of
from support.replays import ReplayHarness, held, is_over
from support.services import wait_until
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)


@pytest.mark.only(("psycopg",))
def test_a_drain_does_not_wait_for_the_lock_of_a_replayed_key(
    world: World, harness: ReplayHarness
) -> None:
    """Another worker handles a message of the key at this moment, and is slow."""
    harness.past(keyed("1"), keyed("2"), keyed("3", "l"))
    harness.start()
    with held(harness, "live", lambda: harness.process(keyed("live"))):
        harness.receive(order("other"))
        assert harness.drain() == {"done": 1}
        assert harness.far() == {}
        assert harness.replays("get", "again").state == "running"
    wait_until(lambda: is_over(harness), "it does not go on")
    ran = harness.ran()
    assert [id for id in ran if id in ("live", "1", "2")] == ["live", "1", "2"]
    assert harness.far() == {"done": 3}


@pytest.mark.only(("psycopg",))
def test_one_worker_at_a_time_stores_messages_of_a_replay(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has locked its row: a feeder does not wait, and nothing is stored twice."""
    harness.past(order("1"), order("2"))
    harness.start()
    store: Any = store_of(harness.inbox)
    store_again = store._store_again
    fed: list[bool] = []

    def slowly(*args: Any) -> Generator[Any, Any, Any]:
        monkeypatch.setattr(store, "_store_again", store_again)
        other = ReplayHarness(world)
        fed.append(other.feed())
        return (yield from store_again(*args))

    monkeypatch.setattr(store, "_store_again", slowly)
    assert harness.feed()
    assert fed == [False]
    assert len(world.pending()) == 2
    assert harness.drain() == {"done": 2}


@pytest.mark.only(("sqlalchemy-psycopg",))
def test_replays_are_refused_above_read_committed(world: World) -> None:
    harness = ReplayHarness(world)
    harness.past(keyed("1"))
    harness.start()
    world.use_database(world.database().execution_options(isolation_level="REPEATABLE READ"))
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        ReplayHarness(world).feed()
    assert world.pending() == []
    assert harness.drain() == {"done": 1}


def test_a_lost_message_of_a_cancelled_replay_is_not_a_dead_letter(
    world: World, harness: ReplayHarness
) -> None:
    """Its transaction got lost, and it is gone: because it was taken back."""
    harness.past(order("1"))
    harness.start()
    harness.feed()
    ((seq,),) = world.query("SELECT seq FROM oncebox_pending")
    replay = harness.replays("get", "again")

    world.execute("DELETE FROM oncebox_pending")
    assert run(_vanished(harness, seq, replay.id)) == [seq]
    for state in ("cancelling", "cancelled"):
        world.execute("UPDATE oncebox_replay SET state = %s", state)
        assert run(_vanished(harness, seq, replay.id)) == []


def _vanished(harness: ReplayHarness, seq: int, replay: int) -> Steps[list[int]]:
    database = yield from open_database(harness.inbox, False)
    message = Message("1", b"", origin="test", replay=replay)
    row = PendingMessage(message, Delivery(b""), 0, seq, replay=replay)
    look = lambda work: store_of(harness.inbox).find_vanished(work, "billing", [row], within=60)  # noqa: E731
    return [found.seq for found in (yield from read(database, look))]
