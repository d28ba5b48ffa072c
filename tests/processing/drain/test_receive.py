"""Received messages are stored, and the drain runs them."""

from __future__ import annotations

import pytest

from oncebox import Delivery
from support.inboxes import LATER, InboxHarness, keyed
from support.tables import attempts, dead_letters
from support.worlds import ALL, BOTH, SOME, World, order


@pytest.mark.only(ALL, quick=ALL)
def test_a_received_message_is_run_by_the_drain(world: World, harness: InboxHarness) -> None:
    assert harness.receive(order("1"), order("2"), order("1")) == ["stored", "stored", "duplicate"]
    assert world.effects() == []
    assert world.states() == {"1": "pending", "2": "pending"}
    assert harness.drain() == {"done": 2}
    assert world.effects() == ["1", "2"]
    assert world.states() == {"1": "done", "2": "done"}
    assert harness.drain() == {}
    assert harness.receive(order("1")) == ["duplicate"]


@pytest.mark.only(SOME)
def test_a_message_received_behind_a_waiting_key_waits_with_it(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError()
    assert harness.process(keyed("1")) == ["failed"]
    assert harness.receive(keyed("2"), keyed("3", "other"), keyed("4")) == [
        "blocked",
        "stored",
        "blocked",
    ]
    assert world.pending() == [
        ("1", 1, "retrying"),
        ("2", 0, "blocked"),
        ("3", 0, "ready"),
        ("4", 0, "blocked"),
    ]
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["3"]


@pytest.mark.only(SOME)
def test_a_message_behind_a_ready_one_is_ready_and_runs_after_it(
    world: World, harness: InboxHarness
) -> None:
    assert harness.receive(keyed("1")) == ["stored"]
    assert harness.receive(keyed("2")) == ["stored"]
    assert harness.process(keyed("3")) == ["blocked"], "inline it must not overtake what is stored"
    assert [row[2] for row in world.pending()] == ["ready"] * 3
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["1", "2", "3"]
    assert harness.process(keyed("4")) == ["done"], "nothing of its key is left to wait for"


@pytest.mark.only(SOME)
def test_received_messages_that_cannot_be_trusted_are_quarantined(
    world: World, harness: InboxHarness
) -> None:
    assert harness.receive(order("1"), order("1", data={"id": "other"})) == [
        "stored",
        "quarantined",
    ]
    assert harness.receive(order("1", data={"id": "other"}), Delivery(b"?")) == ["quarantined"] * 2
    assert dead_letters(world)[0][:3] == ("1", "quarantined", "payload_mismatch")
    assert [row[2] for row in dead_letters(world)] == ["payload_mismatch", "missing_id"]
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["1"]


@pytest.mark.only(BOTH)
def test_received_messages_of_ignored_types_leave_no_row(
    world: World, harness: InboxHarness
) -> None:
    harness.inbox.ignore("noise")
    assert harness.receive(order("1", type="noise"), order("2")) == ["ignored", "stored"]
    assert world.states() == {"2": "pending"}


@pytest.mark.only(SOME)
def test_a_payload_that_is_not_kept_is_stored_until_its_message_ran(world: World) -> None:
    harness = InboxHarness(world, keep_payload=False)
    assert harness.receive(order("1")) == ["stored"]
    assert world.query("SELECT payload FROM oncebox_inbox") == [(None,)]
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["1"]


@pytest.mark.only(SOME)
def test_the_drain_finds_messages_without_a_handler(world: World) -> None:
    def handle(payload: int) -> None: ...

    harness = InboxHarness(world)
    world.on(harness.inbox, "count", handle)
    strange = [order("1", type="strange"), order("2", type="count"), order("3", dataschema="v9")]
    assert harness.receive(*strange, order("4")) == ["stored"] * 4
    assert harness.drain() == {"dead": 2, "done": 2}
    assert [(id, state, reason) for id, state, reason, *_ in sorted(dead_letters(world))] == [
        ("1", "dead", "unknown_type"),
        ("2", "dead", "undecodable"),
    ]
    assert sorted(attempts(world)) == [("3", 1, "done"), ("4", 1, "done")], "nothing else ran"


@pytest.mark.only(BOTH)
def test_an_undecodable_message_blocks_its_key_and_an_unknown_type_does_not(
    world: World, harness: InboxHarness
) -> None:
    def handle(payload: int) -> None: ...

    world.on(harness.inbox, "count", handle)
    harness.receive(
        keyed("1", type="count"), keyed("2"), keyed("3", "l", type="what"), keyed("4", "l")
    )
    assert harness.drain() == {"dead": 2, "blocked": 1, "done": 1}
    assert world.pending() == [("2", 0, "blocked")]
    assert world.effects() == ["4"]
