"""Sequence numbers that are late, taken or unwanted."""

from __future__ import annotations

import pytest

from support.sequences import SequenceHarness, awaiting_sequence, step, steps
from support.tables import dead_letters, set_watermark
from support.worlds import BOTH, World

OLD = "0190a5f0-0000-7000-8000-00000000000"
"""The beginning of ids that came into being long ago."""


@pytest.mark.only(BOTH)
def test_a_late_sequence_number_is_quarantined_and_can_be_released(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(1, 2))
    (outcome,) = harness.outcomes(step(1, id="again"))
    assert (outcome.kind, outcome.reason) == ("quarantined", "late_sequence")
    assert world.states()["again"] == "quarantined"
    assert harness.process(step(3)) == ["done"], "nothing waits for it"
    assert harness.dead("retry", reason="late_sequence", why="it is new").done == 1
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["k1", "k2", "k3", "again"]
    assert world.states()["again"] == "done"
    assert harness.process(step(1, id="again")) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_a_late_sequence_number_can_be_discarded(world: World, harness: SequenceHarness) -> None:
    harness.receive(*steps(1), step(0))
    assert dead_letters(world)[0][:3] == ("k0", "quarantined", "late_sequence")
    assert harness.dead("discard", reason="late_sequence", why="old").done == 1
    assert world.states() == {"k1": "pending", "k0": "discarded"}
    assert harness.process(step(0)) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_a_taken_sequence_number_is_quarantined_and_can_be_released(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(3))
    batch = [step(3, id="rival"), step(2), step(2, id="twin")]
    found = harness.outcomes(*batch)
    assert [o.kind.value for o in found] == ["quarantined", "blocked", "quarantined"]
    assert {o.reason for o in found} == {None, "sequence_taken"}
    assert [row[:3] for row in dead_letters(world)] == [
        ("rival", "quarantined", "sequence_taken"),
        ("twin", "quarantined", "sequence_taken"),
    ]
    harness.process(*steps(1))
    harness.drain()
    assert harness.ran() == ["k1", "k2", "k3"]
    assert harness.dead("retry", message_id="rival", why="both").done == 1
    assert harness.dead("discard", message_id="twin", why="one is enough").done == 1
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["rival"]
    assert world.states()["twin"] == "discarded"


@pytest.mark.only(BOTH)
def test_other_bytes_of_a_waiting_message_are_quarantined_and_released_without_waiting(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(2))
    other = step(2, data={"id": "other"})
    assert harness.process(other) == ["quarantined"]
    assert harness.dead("retry", reason="payload_mismatch", why="run it").done == 1
    assert harness.drain() == {"done": 1}
    assert harness.ran() == ["other"]
    assert awaiting_sequence(world) == ["k2"]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_message_that_came_too_late_counts_as_present(world: World, receiving: bool) -> None:
    """It may be a duplicate of a purged message: then its sequence number was run before."""
    harness = SequenceHarness(world)
    set_watermark(world)
    take = harness.receive if receiving else harness.process
    assert take(step(1, id=f"{OLD}1"), step(2)) == [
        "quarantined",
        "stored" if receiving else "done",
    ]
    assert take(step(4, id=f"{OLD}4"), step(5)) == ["quarantined", "blocked"]
    assert harness.missing() == [("k", "", 3, 4, 2)]
    assert harness.look("status").awaiting_sequence == 1, "the other one is a dead letter"
    assert take(step(3)) == ["stored"]
    assert harness.drain()["done"] == (3 if receiving else 2)
    assert harness.ran() == ["k2", "k3", "k5"]
    assert {row[2] for row in dead_letters(world)} == {"too_late"}
    assert harness.missing() == []
    assert take(step(4, id="rival")) == ["quarantined"]
    assert dead_letters(world)[-1][2] == "late_sequence"
    assert harness.dead("retry", reason="too_late", why="they are new").done == 2
    assert harness.drain() == {"done": 2}
    assert harness.ran() == [f"{OLD}1", f"{OLD}4"]


@pytest.mark.only(BOTH)
def test_a_message_that_is_too_late_does_not_run_in_a_batch_out_of_order(
    world: World, harness: SequenceHarness
) -> None:
    set_watermark(world)
    batch = [step(3), step(2, id=f"{OLD}2"), step(1)]
    assert harness.process(*batch) == ["stored", "quarantined", "stored"]
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["k1", "k3"]
    assert world.query("SELECT count(*) FROM oncebox_awaiting_sequence") == [(0,)]


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("by_name", [True, False], ids=["ignore()", "unknown_type"])
def test_ignored_messages_leave_no_gaps(world: World, by_name: bool) -> None:
    harness = SequenceHarness(world) if by_name else SequenceHarness(world, unknown_type="ignore")
    if by_name:
        harness.inbox.ignore("noise")
    noise = [step(n, type="noise") for n in range(7)]
    assert harness.process(step(1), noise[2], step(3)) == ["done", "ignored", "done"]
    assert harness.process(step(6), noise[5]) == ["blocked", "blocked"]
    assert harness.process(noise[4]) == ["stored"]
    assert harness.drain() == {"ignored": 2, "done": 1}
    assert harness.receive(step(7), step(8, type="noise"), step(9)) == ["stored"] * 3
    assert harness.drain() == {"ignored": 1, "done": 2}
    assert harness.ran() == ["k1", "k3", "k6", "k7", "k9"]
    assert harness.missing() == []
    assert harness.process(noise[4]) == ["duplicate"]


@pytest.mark.only(BOTH)
def test_unknown_types_are_dead_letters_that_leave_no_gaps(
    world: World, harness: SequenceHarness
) -> None:
    assert harness.process(step(2), step(1, type="strange")) == ["stored"] * 2
    assert harness.drain() == {"dead": 1, "done": 1}
    assert harness.process(step(3, type="strange"), step(4)) == ["dead", "done"]
    assert harness.ran() == ["k2", "k4"]
