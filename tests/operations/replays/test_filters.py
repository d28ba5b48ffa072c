"""A replay runs the messages that match its filter."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timezone
from itertools import count

import pytest

from oncebox import Reject
from oncebox.errors import NotFound
from support.inboxes import keyed
from support.replays import HOUR, SYNC_AND_ASYNC, ReplayHarness, received
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)
NOON = datetime(2026, 7, 14, 12, tzinfo=UTC)


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_a_replay_selects_messages_by_its_filter(world: World, harness: ReplayHarness) -> None:
    world.on(harness.inbox, "refund", harness.handle)
    harness.past(
        keyed("1", "a"),
        keyed("2", "b"),
        order("3", source="elsewhere"),
        order("4", type="refund", source="elsewhere"),
        order("4", type="refund", data={"id": "4 here"}),
    )
    for number in range(1, 5):
        received(world, str(number), NOON + number * HOUR)
    there, numbers = {"origin": "elsewhere"}, count()
    wanted: list[str]
    for which, wanted in (
        ({"ids": ("1", "3", "none")}, ["1", "3"]),
        ({"ids": {"4"}}, ["4", "4 here"]),
        ({"ids": ["4", "4"], **there}, ["4"]),
        ({"ids": []}, []),
        (there, ["3", "4"]),
        ({"type": "refund"}, ["4", "4 here"]),
        ({"key": "a"}, ["1"]),
        ({"since": NOON + 3 * HOUR}, ["3", "4", "4 here"]),
        ({"until": NOON + 3 * HOUR}, ["1", "2"]),
        ({"since": NOON + 2 * HOUR, "until": NOON + 3 * HOUR}, ["2"]),
        ({"since": (NOON + 4 * HOUR).astimezone(timezone(9 * HOUR))}, ["4", "4 here"]),
        ({"ids": ["1", "2", "3"], "type": "order", "key": "b", "since": NOON}, ["2"]),
        ({"type": "order", **there, "until": NOON}, []),
    ):
        assert harness.preview(**which) == (len(wanted), 0, 0), which
        name = str(next(numbers))
        assert harness.start(name, **which).total == len(wanted)
        harness.drain()
        assert sorted(harness.ran()) == wanted, which
        assert harness.far(name) == ({"done": len(wanted)} if wanted else {})


def test_only_finished_messages_with_a_payload_can_be_replayed(world: World) -> None:
    harness = ReplayHarness(world)
    bare = ReplayHarness(world, keep_payload=False)
    harness.past(order("1"), order("2"))
    bare.past(order("bare"))
    harness.bad |= {"dead": Reject(), "gone": Reject()}
    harness.process(order("gone"))
    harness.dead("discard", everything=True, why="a test")
    harness.process(order("dead"))
    harness.receive(order("pending"))
    harness.bad.clear()
    assert harness.preview(type="order") == (2, 1, 3)
    assert harness.preview(type="order", state="discarded") == (1, 0, 5)
    assert harness.preview() == (2, 1, 3), "a look at everything costs nothing"
    assert harness.preview(ids=["1", "bare", "gone", "unknown"]) == (1, 1, 1)
    assert harness.start("discarded", state="discarded").total == 1
    assert harness.start().total == 2
    harness.ran()
    assert harness.drain() == {"done": 4}
    assert sorted(harness.ran()) == ["1", "2", "gone", "pending"]
    assert world.states()["gone"] == "discarded", "what it was, it stays"
    assert world.states()["dead"] == "dead"


def test_a_message_that_was_run_by_a_replay_can_be_replayed_again(
    world: World, harness: ReplayHarness
) -> None:
    harness.past(keyed("1"), order("2"))
    for name in ("one", "two", "three"):
        harness.start(name)
        assert harness.drain() == {"done": 2}
    assert Counter(world.effects()) == {"1": 4, "2": 4}


def test_a_replay_runs_only_messages_of_its_own_inbox(world: World, harness: ReplayHarness) -> None:
    other = ReplayHarness(world, name="shipping")
    harness.past(keyed("1"), keyed("2"))
    other.past(keyed("1"), keyed("3"))
    harness.start()
    assert other.drain() == {}
    assert other.preview(type="order") == (2, 0, 0)
    with pytest.raises(NotFound):
        other.replays("get", "again")
    with pytest.raises(NotFound):
        other.cancel()
    assert other.start(key="k").total == 2, "names are its own too"
    assert (harness.drain(), other.drain()) == ({"done": 2}, {"done": 2})
    assert (harness.ran(), other.ran()) == (["1", "2"], ["1", "3"])
