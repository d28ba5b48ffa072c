"""A replay stores messages at its pace."""

from __future__ import annotations

from typing import Any

import pytest

import oncebox.operations.maintenance
import oncebox.processing.drain
from oncebox import Reject
from oncebox.storage.sql import replays as replaying
from support.inboxes import keyed
from support.replays import SLOW, SYNC_AND_ASYNC, ReplayHarness, make_due
from support.worlds import BOTH, World, order

pytestmark = pytest.mark.only(BOTH)


@pytest.mark.only(SYNC_AND_ASYNC, quick=BOTH)
def test_a_pace_can_be_changed(world: World, harness: ReplayHarness) -> None:
    harness.past(*[order(str(n)) for n in range(6)])
    harness.start(pace=SLOW, type="order")
    assert harness.drain() == {"done": 1}
    assert harness.drain() == {}, "the next one is due later"
    assert harness.replays("set_pace", "again", 3.7, why="a little faster").pace == 3.7
    assert harness.feed()
    assert harness.far() == {"done": 1, "waiting": 3}
    assert harness.replays("set_pace", "again", None, why="at once", by="ada").pace is None
    assert harness.drain() == {"done": 5}
    assert harness.far() == {"done": 6}
    assert world.query("SELECT action, by_whom, why, reason FROM oncebox_audit ORDER BY id")[2] == (
        *("pace", "ada"),
        *("at once", "again"),
    )


def test_a_replay_that_fell_behind_its_pace_catches_up_a_little(
    world: World, harness: ReplayHarness
) -> None:
    """No worker drained for an hour: not all that would have been due is stored now."""
    harness.past(*[order(str(n)) for n in range(30)])
    harness.start(pace=1, type="order")
    make_due(world)
    while harness.feed():
        pass
    assert 1 <= len(world.pending()) < 30


def test_a_replay_stores_nothing_while_enough_is_stored(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 4)
    monkeypatch.setattr(replaying, "READY_LIMIT", 6)
    harness.past(*[order(str(n)) for n in range(20)])
    harness.start()
    assert [harness.feed() for _ in range(4)] == [True, True, False, False]
    assert len(world.pending()) == 8
    harness.start("other", ids=["1", "2"])
    make_due(world)
    assert any(harness.feed() for _ in range(2)), "another one goes on"
    assert harness.far("other") == {"waiting": 2}
    assert harness.drain() == {"done": 22}
    assert harness.far() == {"done": 20}


def test_a_drain_continues_until_the_whole_replay_is_done(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there was ample a moment ago."""
    monkeypatch.setattr(replaying, "AT_ONCE", 4)
    monkeypatch.setattr(replaying, "READY_LIMIT", 2)
    monkeypatch.setattr(oncebox.operations.maintenance, "INTERVAL", 0.0)
    harness.past(*[order(str(n)) for n in range(20)])
    harness.start()
    assert harness.drain(batch=1) == {"done": 20}
    assert harness.far() == {"done": 20}


def test_a_replay_stores_nothing_while_many_messages_wait(
    world: World, harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    monkeypatch.setattr(replaying, "UNFINISHED_LIMIT", 4)
    harness.past(*[keyed(str(n), "k") for n in range(4)], *[order(f"x{n}") for n in range(8)])
    harness.bad["letter"] = Reject()
    harness.process(keyed("letter"))
    harness.start()
    assert harness.drain() == {}
    assert [row[2] for row in world.pending()] == ["blocked"] * 4
    harness.bad.clear()
    harness.dead("retry", everything=True, why="fixed")
    assert harness.drain() == {"done": 13}
    assert harness.far() == {"done": 12}


def test_a_busy_drain_feeds_replays_too(world: World, harness: ReplayHarness) -> None:
    waiting: list[list[str]] = []

    def handle(payload: dict[str, Any]) -> None:
        waiting.append([row[0] for row in world.pending()])

    world.on(harness.inbox, "live", handle)
    harness.past(keyed("old"))
    harness.receive(*[keyed(str(n), type="live") for n in range(3)])
    harness.start()
    assert harness.drain(batch=1) == {"done": 4}
    assert "old" in waiting[-1]
