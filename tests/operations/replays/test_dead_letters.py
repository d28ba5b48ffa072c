"""Dead letters of a replay."""

from __future__ import annotations

import pytest

from oncebox import Ordering, Reject
from support.inboxes import keyed
from support.replays import SYNC_AND_ASYNC, ReplayHarness
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)


def died(harness: ReplayHarness) -> None:
    """A replay of three messages of a key, the first of which is a dead letter."""
    harness.past(keyed("1"), keyed("2"), keyed("3"))
    harness.bad["1"] = Reject("not again")
    harness.start()
    assert harness.drain()["dead"] == 1
    harness.bad.clear()
    harness.ran()
    assert harness.far() == {"dead": 1, "waiting": 2}
    assert harness.process(keyed("new")) == ["blocked"]
    assert harness.world.states() == {"1": "done", "2": "done", "3": "done", "new": "pending"}


def test_a_dead_letter_of_a_replay_is_retried_at_the_head_of_its_key(
    world: World, harness: ReplayHarness
) -> None:
    died(harness)
    (letter,) = harness.dead("find")
    assert (letter.message_id, letter.replay) == ("1", harness.replays("get", "again").id)
    assert harness.dead("retry", letter.id, why="fixed").done == 1
    assert harness.far() == {"waiting": 3}
    assert harness.drain() == {"done": 4}
    assert harness.ran() == ["1", "2", "3", "new"]
    assert harness.far() == {"done": 3}
    assert world.effects() == ["1", "1", "2", "2", "3", "3", "new"]


def test_a_dead_letter_of_a_replay_that_is_discarded_leaves_its_message_done(
    world: World, harness: ReplayHarness
) -> None:
    died(harness)
    assert harness.dead("discard", everything=True, why="enough").done == 1
    assert harness.far() == {"discarded": 1, "waiting": 2}
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["2", "3", "new"]
    assert harness.far() == {"done": 2, "discarded": 1}
    assert set(world.states().values()) == {"done"}
    assert harness.preview(type="order") == (4, 0, 0), "it may be replayed again"
    assert harness.preview(type="order", state="discarded") == (0, 0, 4)


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_cancelling_a_replay_removes_its_dead_letter_and_releases_the_key(
    world: World, harness: ReplayHarness
) -> None:
    died(harness)
    assert harness.cancel().state == "cancelled"
    assert harness.dead("find") == []
    assert harness.far() == {"cancelled": 3}
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["new"]
    assert harness.process(keyed("next")) == ["done"]
    assert set(world.states().values()) == {"done"}


def test_cancelling_a_replay_keeps_older_dead_letters(world: World, harness: ReplayHarness) -> None:
    harness.past(keyed("1"), keyed("2"))
    harness.bad["letter"] = Reject()
    assert harness.process(keyed("letter"), order("0")) == ["dead", "done"]
    harness.start()
    harness.drain()
    assert harness.cancel().state == "cancelled"
    assert [letter.message_id for letter in harness.dead("find")] == ["letter"]
    assert harness.process(keyed("new")) == ["blocked"], "its key still waits"


def test_with_skip_dead_a_replay_continues_behind_its_dead_letter(world: World) -> None:
    harness = ReplayHarness(world, ordering=Ordering.skip_dead)
    harness.past(keyed("1"), keyed("2"))
    harness.bad["1"] = Reject()
    harness.start()
    assert harness.drain() == {"dead": 1, "done": 1}
    assert harness.replays("get", "again").is_over
    assert harness.far() == {"dead": 1, "done": 1}
    harness.bad.clear()
    harness.dead("retry", everything=True, why="fixed")
    assert harness.drain() == {"done": 1}
    assert harness.far() == {"done": 2}


def test_a_replay_with_only_dead_letters_left_can_be_cancelled(world: World) -> None:
    harness = ReplayHarness(world, ordering=Ordering.skip_dead)
    harness.past(keyed("1"), keyed("2"))
    harness.bad["1"] = Reject()
    harness.start()
    harness.drain()
    assert harness.replays("get", "again").is_over
    assert harness.cancel().state == "cancelled"
    assert harness.dead("find") == []
    assert harness.far() == {"cancelled": 1, "done": 1}
