"""Quarantined deliveries are released or discarded."""

from __future__ import annotations

import pytest

from oncebox import Delivery
from oncebox.errors import ConfigurationError
from support.identities import FixableIdentity
from support.inboxes import LATER, InboxHarness, keyed
from support.tables import audit_entries, dead_letters, make_retries_due, set_watermark
from support.worlds import BOTH, SOME, World, order

OLD = "0190a5f0-0000-7000-8000-000000000000"
"""An id that says when it came into being."""


@pytest.mark.only(SOME)
def test_a_message_that_came_too_late_is_released(world: World, harness: InboxHarness) -> None:
    set_watermark(world)
    assert harness.process(keyed(OLD)) == ["quarantined"]
    assert world.states() == {OLD: "quarantined"}
    assert harness.dead("retry", reason="too_late", why="it is new").done == 1
    assert harness.drain() == {"done": 1}
    assert world.effects() == [OLD]
    assert world.states() == {OLD: "done"}
    assert audit_entries(world)[0][3:] == (OLD, "too_late")


@pytest.mark.only(SOME)
def test_unidentified_deliveries_are_released_once_the_identity_is_fixed(world: World) -> None:
    identity = FixableIdentity()
    harness = InboxHarness(world, identity=identity)
    batch = [keyed("1"), keyed("2"), Delivery(b"nonsense"), keyed("1", specversion="1.0")]
    assert harness.process(*batch) == ["quarantined"] * 4
    acted = harness.dead("retry", state="quarantined", why="again")
    assert (acted.done, acted.left) == (0, 3), "they are still unidentified"
    assert len(dead_letters(world)) == 3
    identity.fixed = True
    acted = harness.dead("retry", state="quarantined", why="again")
    assert (acted.done, acted.left) == (2, 1)
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["1", "2"]
    assert world.states() == {"1": "done", "2": "done"}
    assert len(dead_letters(world)) == 1
    assert harness.process(*batch[:2]) == ["duplicate"] * 2
    assert len(audit_entries(world)) == 2


@pytest.mark.only(SOME)
def test_a_released_delivery_that_is_too_late_is_quarantined_again(world: World) -> None:
    identity = FixableIdentity()
    harness = InboxHarness(world, identity=identity)
    assert harness.process(keyed(OLD), keyed("1")) == ["quarantined"] * 2
    set_watermark(world)
    identity.fixed = True
    acted = harness.dead("retry", reason="missing_id", why="fixed")
    assert (acted.done, acted.left) == (1, 1)
    ((id, state, reason, *_),) = dead_letters(world)
    assert (id, state, reason) == (OLD, "quarantined", "too_late")
    assert world.states() == {OLD: "quarantined", "1": "pending"}
    assert harness.drain() == {"done": 1}
    assert harness.process(keyed(OLD)) == ["duplicate"], "it is known now"
    assert len(dead_letters(world)) == 1
    acted = harness.dead("retry", reason="too_late", why="it is new")
    assert (acted.done, acted.left) == (1, 0)
    assert harness.drain() == {"done": 1}
    assert world.effects() == [OLD, "1"]
    assert world.states() == {OLD: "done", "1": "done"}
    assert dead_letters(world) == []
    assert [(row[0], row[4]) for row in audit_entries(world)] == [
        ("retry", "missing_id"),
        ("retry", "missing_id"),
        ("retry", "too_late"),
    ]


@pytest.mark.only(BOTH)
def test_a_released_delivery_that_is_too_late_can_be_discarded(world: World) -> None:
    identity = FixableIdentity()
    harness = InboxHarness(world, identity=identity)
    harness.process(keyed(OLD))
    set_watermark(world)
    identity.fixed = True
    harness.dead("retry", everything=True, why="fixed")
    assert harness.process(keyed("2")) == ["done"], "it holds nothing up"
    harness.dead("discard", everything=True, why="a duplicate")
    assert world.states() == {OLD: "discarded", "2": "done"}
    assert dead_letters(world) == []


@pytest.mark.only(SOME)
def test_a_released_delivery_with_other_bytes_is_quarantined_again(world: World) -> None:
    identity = FixableIdentity()
    harness = InboxHarness(world, identity=identity)
    other = keyed("1", data={"id": "other"})
    assert harness.process(other) == ["quarantined"]
    identity.fixed = True
    assert harness.process(keyed("1")) == ["done"]
    acted = harness.dead("retry", everything=True, why="fixed")
    assert (acted.done, acted.left) == (0, 1)
    assert dead_letters(world)[0][:3] == ("1", "quarantined", "payload_mismatch")
    assert harness.process(other) == ["quarantined"]
    assert len(dead_letters(world)) == 1, "it is the same delivery"
    assert harness.dead("retry", everything=True, why="both").done == 1
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["1", "other"]
    assert dead_letters(world) == []


@pytest.mark.only(SOME)
def test_other_bytes_run_under_an_id_of_their_own(world: World, harness: InboxHarness) -> None:
    harness.process(keyed("1"))
    other = keyed("1", data={"id": "other"})
    assert harness.process(other) == ["quarantined"]
    assert harness.dead("retry", reason="payload_mismatch", why="a producer's mistake").done == 1
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["1", "other"]
    assert len(world.states()) == 2
    assert set(world.states().values()) == {"done"}
    assert all(id == "1" or id.startswith("1~") for id in world.states())
    assert harness.process(other) == ["quarantined"], "the same bytes once more"
    assert harness.dead("retry", reason="payload_mismatch", why="again").done == 1
    assert harness.drain() == {}
    assert world.effects() == ["1", "other"], "a duplicate of the one that was released"
    assert dead_letters(world) == []


@pytest.mark.only(BOTH)
def test_other_bytes_are_released_under_the_longest_ids_too(
    world: World, harness: InboxHarness
) -> None:
    id = "é" * 127
    harness.process(order(id))
    assert harness.process(order(id, data={"id": "other"})) == ["quarantined"]
    harness.dead("retry", state="quarantined", why="both")
    assert harness.drain() == {"done": 1}
    assert world.effects() == sorted([id, "other"])


@pytest.mark.only(BOTH)
def test_a_released_message_waits_behind_its_key(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.process(keyed("1"))
    harness.process(keyed("1", data={"id": "other"}))
    harness.bad["2"] = ValueError()
    assert harness.process(keyed("2")) == ["failed"]
    harness.dead("retry", state="quarantined", why="both")
    assert [row[2] for row in world.pending()] == ["retrying", "blocked"]
    harness.bad.clear()
    harness.ran()
    make_retries_due(world)
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["2", "other"]


@pytest.mark.only(BOTH)
def test_quarantined_deliveries_are_discarded(world: World, harness: InboxHarness) -> None:
    harness.process(order("1"), order("1", data={"id": "other"}), Delivery(b"?"))
    assert harness.dead("discard", state="quarantined", why="noise").done == 2
    assert dead_letters(world) == []
    assert [(row[0], row[4]) for row in audit_entries(world)] == [
        ("discard", "payload_mismatch"),
        ("discard", "missing_id"),
    ]


@pytest.mark.only(("sqlalchemy-psycopg",))
def test_a_dead_letter_is_not_lost_above_read_committed(world: World) -> None:
    harness = InboxHarness(world)
    harness.process(keyed("1"), keyed("1", data={"id": "other"}))
    world.use_database(world.database().execution_options(isolation_level="REPEATABLE READ"))
    strict = InboxHarness(world)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        strict.dead("retry", state="quarantined", why="both")
    assert len(dead_letters(world)) + len(world.pending()) == 1
