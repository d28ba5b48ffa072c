"""Purges, replays and releases of messages with sequence numbers."""

from __future__ import annotations

import pytest

from support.identities import FixableIdentity
from support.inboxes import purge
from support.sequences import SequenceHarness, awaiting_sequence, step, steps
from support.tables import age, dead_letters
from support.worlds import BOTH, SOME, World


@pytest.mark.only(BOTH)
def test_a_purge_keeps_messages_that_wait_for_a_sequence_number(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(1, 3))
    age(world, 8)
    harness.process(step(1, "new"))
    assert purge(world, harness.inbox).purged == 1
    assert world.states() == {"k3": "awaiting_sequence", "new1": "done"}
    assert harness.process(*steps(2)) == ["stored"], "what was purged is still counted"
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["k1", "new1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_a_replay_runs_in_sequence_order_without_waiting_messages(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(3, 2))
    harness.process(*steps(1, 6))
    harness.drain()
    harness.process(*steps(4))
    harness.ran()
    preview = harness.inbox.replays.preview(key="k")
    assert (preview.count, preview.in_other_states) == (4, 1)
    assert harness.inbox.replays.start("again", key="k", why="a test").total == 4
    assert harness.drain() == {"done": 4}
    assert harness.ran() == ["k1", "k2", "k3", "k4"]
    assert awaiting_sequence(world) == ["k6"]
    assert harness.missing() == [("k", "", 5, 6, 1)]


@pytest.mark.only(SOME, quick=BOTH)
def test_released_deliveries_are_put_in_order(world: World) -> None:
    """As if they arrived now: their sequence numbers were unknown before."""
    identity = FixableIdentity(sequence="number")
    harness = SequenceHarness(world, identity=identity)
    assert harness.process(*steps(5, 3, 2)) == ["quarantined"] * 3
    identity.fixed = True
    acted = harness.dead("retry", state="quarantined", why="fixed")
    assert (acted.done, acted.left) == (3, 0)
    assert dead_letters(world) == []
    assert awaiting_sequence(world) == ["k2", "k3", "k5"]
    assert harness.drain() == {}
    assert harness.process(*steps(1)) == ["stored"]
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(BOTH)
def test_released_deliveries_may_be_quarantined_for_another_reason(world: World) -> None:
    identity = FixableIdentity(sequence="number")
    harness = SequenceHarness(world, identity=identity)
    harness.process(step(1, id="lost"), step(4, id="rival"), step(2))
    identity.fixed = True
    harness.process(*steps(1, 4))
    acted = harness.dead("retry", state="quarantined", why="fixed")
    assert (acted.done, acted.left) == (1, 2)
    assert [row[:3] for row in dead_letters(world)] == [
        ("lost", "quarantined", "late_sequence"),
        ("rival", "quarantined", "sequence_taken"),
    ]
    assert harness.drain() == {"done": 1}
    assert harness.dead("retry", state="quarantined", why="all the same").done == 2
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["k1", "k2", "lost", "rival"]
