"""A replay runs each of its messages once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from oncebox import Message, Reject
from support.inboxes import keyed
from support.replays import ReplayHarness, is_over
from support.services import wait_until
from support.worlds import BOTH, SOME, World, order, write_effect

pytestmark = pytest.mark.only(BOTH)


@pytest.mark.only(SOME, quick=BOTH)
def test_each_message_takes_effect_once_more(world: World, harness: ReplayHarness) -> None:
    harness.past(order("1"), keyed("2"))
    harness.receive(keyed("3"))
    harness.drain()
    before = world.query("SELECT * FROM oncebox_message ORDER BY seq")
    begun = harness.start(pace=1000, type="order")
    assert (begun.name, begun.state, begun.why) == ("again", "running", "a test")
    assert (begun.total, begun.stored, begun.waiting, begun.pace) == (3, 0, 0, 1000.0)
    assert begun.wanted == '{"type":"order"}'
    assert begun.began_at.tzinfo is not None
    assert not begun.is_over
    assert world.effects() == ["1", "2", "3"]
    assert harness.drain() == {"done": 3}
    wait_until(lambda: is_over(harness), "it does not end")
    assert world.effects() == ["1", "1", "2", "2", "3", "3"]
    over = harness.replays("get", "again")
    assert (over.state, over.stored, over.done) == ("stored", 3, 3)
    assert over.began_at <= over.ended_at
    assert harness.drain() == {}
    assert world.effects() == ["1", "1", "2", "2", "3", "3"]
    assert world.query("SELECT * FROM oncebox_message ORDER BY seq") == before
    assert world.query("SELECT count(*) FROM oncebox_replay_item") == [(0,)]
    assert harness.process(order("1"), keyed("4")) == ["duplicate", "done"]


def test_replays_are_found_the_newest_first(world: World, harness: ReplayHarness) -> None:
    assert harness.replays("find") == []
    harness.past(order("1"))
    for name in ("one", "two", "three"):
        harness.start(name)
    assert [replay.name for replay in harness.replays("find")] == ["three", "two", "one"]
    assert [replay.name for replay in harness.replays("find", limit=2)] == ["three", "two"]
    assert harness.replays("get", "two").name == "two"


def test_replays_that_overlap_run_a_message_once_each(world: World, harness: ReplayHarness) -> None:
    harness.past(*[keyed(str(n), f"k{n % 2}" if n % 3 else None) for n in range(9)])
    harness.start("all")
    harness.start("some", ids=["1", "2", "3", "4"])
    assert harness.drain(batch=4) == {"done": 13}
    assert Counter(world.effects()) == {str(n): 3 if 1 <= n <= 4 else 2 for n in range(9)}
    assert (harness.far("all"), harness.far("some")) == ({"done": 9}, {"done": 4})


def test_a_list_never_contains_a_message_twice(world: World, harness: ReplayHarness) -> None:
    lists: list[list[str]] = []

    def handle(payloads: list[dict[str, Any]], tx: Any) -> Iterator[Any]:
        lists.append([payload["id"] for payload in payloads])
        for payload in payloads:
            yield from write_effect(payload, tx)

    world.on(harness.inbox, "many", handle, batch=True)
    harness.past(*[order(str(n), key="k" if n < 4 else None, type="many") for n in range(8)])
    for name in ("one", "two", "three"):
        harness.start(name, type="many")
    while harness.feed():
        pass
    lists.clear()
    assert harness.drain() == {"done": 24}
    assert all(len(message_ids) == len(set(message_ids)) for message_ids in lists)
    assert max(map(len, lists)) > 1
    assert Counter(world.effects()) == dict.fromkeys("01234567", 4)


def test_handlers_know_which_replay_they_run_for(world: World, harness: ReplayHarness) -> None:
    seen: list[tuple[str, int]] = []

    def one(message: Message, tx: Any) -> None:
        seen.append((message.id, message.replay))
        assert tx.message.replay == message.replay

    def many(messages: list[Message]) -> None:
        seen.extend((message.id, message.replay) for message in messages)

    world.on(harness.inbox, "one", one)
    world.on(harness.inbox, "many", many, batch=True)
    harness.past(order("1", type="one"), order("2", type="many"))
    harness.receive(order("3", type="one"))
    first = harness.start("first", origin="test")
    assert harness.drain() == {"done": 3}
    second = harness.start("second", ids=["3"])
    assert harness.drain() == {"done": 1}
    assert sorted(seen) == sorted(
        [("1", 0), ("2", 0), ("3", 0), ("1", first.id), ("2", first.id), ("3", second.id)]
    )


def test_attempts_are_recorded_with_their_replay(world: World, harness: ReplayHarness) -> None:
    harness.past(keyed("1"))
    harness.bad["1"] = ValueError("not again")
    replay = harness.start()
    assert harness.drain() == {"dead": 1}
    harness.bad.clear()
    harness.dead("retry", everything=True, why="fixed")
    assert harness.drain() == {"done": 1}
    (found,) = harness.inbox.messages.get("1")
    assert [(run.replay, run.number, run.outcome) for run in found.attempts] == [
        (replay.id, 1, "dead"),
        (replay.id, 2, "done"),
    ]
    assert [(audit.action, audit.replay) for audit in found.actions] == [("retry", replay.id)]
    assert (found.message.state, found.message.attempts, found.letter) == ("done", 1, None)


def test_oldest_pending_ignores_messages_of_replays(world: World, harness: ReplayHarness) -> None:
    status = harness.inbox.status
    harness.past(order("1"), keyed("2"))
    harness.start()
    harness.feed()
    assert (status().ready, status().oldest_pending) == (2, None)
    harness.receive(order("3"))
    ((at,),) = world.query("SELECT received_at FROM oncebox_inbox WHERE message_id = '3'")
    oldest = status().oldest_pending
    assert oldest is not None
    assert at == (oldest if world.is_postgres else round(oldest.timestamp() * 1_000_000))
    assert harness.drain() == {"done": 3}
    assert status().oldest_pending is None


def test_a_crashing_message_of_a_replay_stays_part_of_the_replay(
    world: World, harness: ReplayHarness
) -> None:
    """It is isolated, as after a crash: that must not make it a new message."""
    harness.past(keyed("1"), keyed("2"))
    harness.start()
    harness.feed()
    world.execute("UPDATE oncebox_pending SET isolated = true")
    harness.bad["1"] = Reject()
    assert harness.drain() == {"dead": 1}
    assert harness.far() == {"dead": 1, "waiting": 1}
    harness.dead("discard", everything=True, why="a test")
    assert harness.drain() == {"done": 1}
    assert harness.far() == {"discarded": 1, "done": 1}
    assert world.states() == {"1": "done", "2": "done"}
