"""A replay runs the messages of a key in their order."""

from __future__ import annotations

from collections import Counter

import pytest

from oncebox import Reject
from oncebox.storage.sql import replays as replaying
from support.inboxes import LATER, keyed
from support.replays import SLOW, SYNC_AND_ASYNC, ReplayHarness, make_due
from support.tables import make_retries_due
from support.worlds import BOTH, SOME, World, order

pytestmark = pytest.mark.only(BOTH)


@pytest.mark.only(SOME, quick=BOTH)
def test_a_replay_runs_a_key_in_its_order_behind_pending_messages(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("c"), keyed("x", "l"), keyed("a"), keyed("y", "l"), keyed("b"))
    assert harness.receive(keyed("live")) == ["stored"]
    harness.start()
    assert harness.feed()
    assert harness.process(keyed("inline")) == ["blocked"], "it must not overtake"
    assert harness.receive(keyed("stored")) == ["stored"]
    assert harness.process(keyed("other", "m")) == ["done"]
    harness.ran()
    assert harness.drain() == {"done": 8}
    ran = harness.ran()
    assert [id for id in ran if id in ("x", "y")] == ["x", "y"]
    assert [id for id in ran if id not in ("x", "y")] == [
        *("live", "c", "a", "b"),
        *("inline", "stored"),
    ]
    assert harness.process(keyed("last")) == ["done"], "nothing is left to wait for"


def test_new_messages_do_not_run_between_replayed_messages_of_a_key(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    harness.past(keyed("c"), order("0"), keyed("a"), keyed("x", "l"), keyed("b"))
    harness.start()
    assert harness.feed()
    assert sorted(row[0] for row in world.pending()) == ["0", "a", "b", "c"]
    assert harness.receive(keyed("new")) == ["stored"]
    assert harness.drain() == {"done": 6}
    ran = harness.ran()
    assert [id for id in ran if id in "cab" or id == "new"] == ["c", "a", "b", "new"]


def test_with_a_pace_new_messages_run_between_replayed_ones(
    world: World, harness: ReplayHarness
) -> None:
    """A whole key at once would break it; the order of the old ones is kept."""
    harness.past(keyed("c"), keyed("a"), keyed("b"))
    harness.start(pace=SLOW, type="order")
    assert harness.feed()
    assert harness.process(keyed("new")) == ["blocked"]
    make_due(world)
    assert harness.feed()
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["c", "new", "a"]
    make_due(world)
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["b"]


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_a_replay_waits_behind_a_failing_message_and_continues_in_order(world: World) -> None:
    harness = ReplayHarness(world, retry=LATER)
    harness.past(keyed("c"), keyed("a"), keyed("x", "l"), keyed("b"))
    harness.bad["head"] = ValueError("not yet")
    assert harness.process(keyed("head")) == ["failed"]
    harness.ran()
    harness.start()
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["x"]
    assert world.pending() == [
        ("head", 1, "retrying"),
        ("c", 0, "blocked"),
        ("a", 0, "blocked"),
        ("b", 0, "blocked"),
    ]
    assert harness.far() == {"done": 1, "waiting": 3}
    assert harness.process(keyed("new")) == ["blocked"]
    harness.bad.clear()
    make_retries_due(world)
    assert harness.drain() == {"done": 5}
    assert harness.ran() == ["head", "c", "a", "b", "new"]
    assert harness.far() == {"done": 4}


@pytest.mark.parametrize("act", ["retry", "discard"])
def test_a_replay_waits_behind_a_dead_letter_and_continues_in_order(
    world: World, harness: ReplayHarness, act: str
) -> None:
    harness.past(keyed("c"), keyed("a"), keyed("b"))
    harness.bad["letter"] = Reject()
    assert harness.process(keyed("letter")) == ["dead"]
    harness.start()
    assert harness.drain() == {}
    assert harness.far() == {"waiting": 3}
    assert harness.process(keyed("new")) == ["blocked"]
    harness.bad.clear()
    harness.ran()
    harness.dead(act, everything=True, why="a test")
    harness.drain()
    assert harness.ran() == [*(["letter"] if act == "retry" else []), "c", "a", "b", "new"]
    assert harness.far() == {"done": 3}


def test_a_message_that_fails_in_a_replay_blocks_its_key(world: World) -> None:
    harness = ReplayHarness(world, retry=LATER)
    harness.past(keyed("c"), keyed("a"), order("0"), keyed("b"))
    harness.start()
    harness.bad["a"] = ValueError("not yet")
    assert harness.drain() == {"done": 2, "failed": 1, "blocked": 1}
    assert harness.process(keyed("new")) == ["blocked"]
    assert world.states()["a"] == "done", "it was, and is"
    harness.ran()
    harness.bad.clear()
    make_retries_due(world)
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["a", "b", "new"]
    assert Counter(world.effects()) == {**dict.fromkeys("0abc", 2), "new": 1}
