"""Failures and epochs of messages with sequence numbers."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox import Delivery, Reject
from support.inboxes import LATER, ONCE
from support.sequences import SequenceHarness, awaiting_sequence, step, steps
from support.tables import audit_entries, make_retries_due
from support.worlds import BOTH, SOME, World


@pytest.mark.only(BOTH)
def test_a_message_whose_sequence_number_arrived_waits_behind_a_failing_message(
    world: World,
) -> None:
    harness = SequenceHarness(world, retry=LATER)
    harness.bad["k1"] = ValueError("not yet")
    assert harness.process(*steps(1, 2, 5)) == ["failed", "blocked", "blocked"]
    assert awaiting_sequence(world) == ["k5"], "the number of a message that fails is not missing"
    assert harness.process(*steps(4)) == ["blocked"]
    assert harness.process(*steps(3)) == ["stored"]
    assert world.pending() == [
        ("k1", 1, "retrying"),
        *((f"k{n}", 0, "blocked") for n in (2, 3, 4, 5)),
    ]
    assert harness.drain() == {}
    harness.bad.clear()
    harness.ran()
    make_retries_due(world)
    assert harness.drain() == {"done": 5}
    assert harness.ran() == ["k1", "k2", "k3", "k4", "k5"]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("act", ["retry", "discard"])
def test_a_message_whose_sequence_number_arrived_waits_behind_a_dead_letter(
    world: World, act: str
) -> None:
    harness = SequenceHarness(world, retry=ONCE)
    harness.bad["k1"] = ValueError("never")
    assert harness.process(*steps(1, 3)) == ["dead", "blocked"]
    assert awaiting_sequence(world) == ["k3"]
    assert harness.process(*steps(2)) == ["stored"]
    assert world.pending() == [("k2", 0, "blocked"), ("k3", 0, "blocked")]
    assert harness.process(*steps(4)) == ["blocked"]
    assert harness.drain() == {}
    harness.bad.clear()
    harness.ran()
    assert harness.dead(act, key="k", why="fixed").done == 1
    harness.drain()
    assert harness.ran() == [*(["k1"] if act == "retry" else []), "k2", "k3", "k4"]


@pytest.mark.only(BOTH)
def test_a_message_that_waited_and_then_fails_blocks_what_follows(world: World) -> None:
    harness = SequenceHarness(world, retry=ONCE)
    harness.bad["k2"] = Reject("no")
    harness.process(*steps(3, 2))
    harness.process(*steps(1))
    assert harness.drain() == {"done": 1, "dead": 1, "blocked": 1}
    assert world.pending() == [("k3", 0, "blocked")]
    assert harness.process(*steps(4)) == ["blocked"]
    harness.bad.clear()
    harness.dead("retry", key="k", why="fixed")
    assert harness.drain() == {"done": 3}
    assert harness.ran()[-3:] == ["k2", "k3", "k4"]


@pytest.mark.only(BOTH)
def test_a_batch_that_is_run_again_counts_its_sequence_numbers_once(
    world: World, harness: SequenceHarness
) -> None:
    """The unit is rolled back as a whole, numbers included."""

    class Conflict(Exception):
        sqlstate = "40001"

    harness.bad["k1"] = Conflict()
    stop = iter([None, None])
    original = harness.handle

    def handle(payload: dict[str, Any], tx: Any) -> Any:
        if next(stop, 1) == 1:
            harness.bad.clear()
        yield from original(payload, tx)

    world.on(harness.inbox, "moody", handle)
    batch = [step(1, type="moody"), step(2), step(4)]
    assert harness.process(*batch) == ["done", "done", "blocked"]
    assert harness.ran().count("k1") == 3
    assert world.effects() == ["k1", "k2"]
    assert harness.missing() == [("k", "", 3, 4, 1)]


@pytest.mark.only(SOME, quick=BOTH)
def test_epochs_of_a_key_have_separate_sequences(world: World, harness: SequenceHarness) -> None:
    def at(era: str, number: int) -> Delivery:
        return step(number, id=f"{era}{number}", era=era)

    assert harness.process(at("a", 1), at("b", 1), at("a", 2), at("b", 3)) == [
        *["done"] * 3,
        "blocked",
    ]
    assert harness.ran() == ["a1", "b1", "a2"]
    assert harness.process(at("a", 4), at("b", 2), at("a", 3)) == ["stored"] * 3
    assert harness.drain() == {"done": 4}
    ran = harness.ran()
    assert [id for id in ran if id[0] == "a"] == ["a3", "a4"]
    assert [id for id in ran if id[0] == "b"] == ["b2", "b3"]
    assert harness.process(at("a", 6), at("b", 5), at("b", 4)) == ["blocked", "stored", "stored"]
    assert harness.missing() == [("k", "a", 5, 6, 1)]
    assert harness.drain() == {"done": 2}, "the gap of an epoch does not hold the next"
    assert harness.process(at("", 1), at("c", 2)) == ["done", "blocked"]
    harness.gaps("skip", "k", why="both")
    assert harness.missing() == []
    assert sorted(row[4] for row in audit_entries(world)) == [
        "key 'k' of epoch 'a': number 5",
        "key 'k' of epoch 'c': number 1",
    ]


@pytest.mark.only(BOTH)
def test_an_epoch_in_order_does_not_overtake_an_epoch_out_of_order(
    world: World, harness: SequenceHarness
) -> None:
    """One transaction would run the one and store the other: the key is stored as a whole."""
    batch = [step(2, era="a", id="a2"), step(1, era="b", id="b1"), step(1, era="a", id="a1")]
    assert harness.process(*batch) == ["stored"] * 3
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["a1", "a2", "b1"]
