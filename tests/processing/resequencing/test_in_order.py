"""Messages of a key run in the order of their sequence numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox import Message
from oncebox.errors import ConfigurationError, NotFound
from support.inboxes import keyed, redelivered
from support.sequences import SequenceHarness, awaiting_sequence, step, steps
from support.worlds import BOTH, SOME, World


@pytest.mark.only(BOTH)
def test_messages_in_order_run_at_once(world: World, harness: SequenceHarness) -> None:
    assert harness.process(*steps(1, 2)) == ["done", "done"]
    assert harness.process(*steps(3)) == ["done"]
    assert harness.process(*steps(1, 2, key="other"), step(4)) == ["done"] * 3
    assert [id for id in harness.ran() if id.startswith("k")] == ["k1", "k2", "k3", "k4"]
    assert harness.missing() == []
    assert world.query("SELECT count(*) FROM oncebox_attempt") == [(0,)], "nothing was stored"


@pytest.mark.only(BOTH)
def test_messages_in_order_are_received_as_usual(world: World, harness: SequenceHarness) -> None:
    assert harness.receive(*steps(1, 2)) == ["stored", "stored"]
    assert harness.process(*steps(3)) == ["blocked"], "it must not overtake what is stored"
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k1", "k2", "k3"]
    assert harness.process(*steps(4)) == ["done"]


@pytest.mark.only(BOTH)
def test_messages_without_keys_need_no_sequence_numbers(
    world: World, harness: SequenceHarness
) -> None:
    assert harness.process(keyed("a", None), keyed("b", None, number=7), step(2)) == [
        "done",
        "done",
        "blocked",
    ]
    assert harness.missing() == [("k", "", 1, 2, 1)]


@pytest.mark.only(BOTH)
def test_a_message_of_a_key_without_a_sequence_number_is_quarantined(
    world: World, harness: SequenceHarness
) -> None:
    (outcome,) = harness.outcomes(keyed("1"))
    assert (outcome.kind, outcome.reason) == ("quarantined", "missing_id")
    assert "sequence number is missing" in str(outcome.error)
    assert harness.process(step(1)) == ["done"]


def test_an_early_message_waits_for_its_sequence_number_and_runs_in_order(
    world: World, harness: SequenceHarness
) -> None:
    """The whole of it, on every adapter."""
    assert harness.process(step(3, occurred="x")) == ["blocked"]
    assert harness.process(*steps(2, 5)) == ["blocked", "blocked"]
    assert harness.ran() == []
    assert world.states() == {
        "k2": "awaiting_sequence",
        "k3": "awaiting_sequence",
        "k5": "awaiting_sequence",
    }
    assert world.pending() == []
    assert harness.missing() == [("k", "", 1, 2, 3)]
    assert harness.process(step(1)) == ["stored"], "it runs with what waited for it"
    assert world.states() == {
        "k1": "pending",
        "k2": "pending",
        "k3": "pending",
        "k5": "awaiting_sequence",
    }
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k1", "k2", "k3"]
    assert harness.missing() == [("k", "", 4, 5, 1)]
    assert harness.process(step(3, id="late"), step(5, id="taken")) == ["quarantined"] * 2
    assert [gap.lowest for gap in harness.gaps("skip", "k", why="lost")] == [5]
    assert harness.drain() == {"done": 1}
    assert harness.process(*steps(6)) == ["done"]
    assert harness.ran() == ["k5", "k6"]


@pytest.mark.only(SOME, quick=BOTH)
def test_an_early_message_that_is_received_waits_as_well(
    world: World, harness: SequenceHarness
) -> None:
    assert harness.receive(*steps(2, 4)) == ["blocked", "blocked"]
    assert harness.drain() == {}
    assert harness.receive(step(3), step(1), step(1, "other")) == ["stored"] * 3
    assert awaiting_sequence(world) == []
    assert [row[2] for row in world.pending()] == ["ready"] * 5
    assert harness.drain() == {"done": 5}
    assert [id for id in harness.ran() if id != "other1"] == ["k1", "k2", "k3", "k4"]
    assert set(world.states().values()) == {"done"}


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_batch_out_of_order_runs_in_order(
    world: World, harness: SequenceHarness, receiving: bool
) -> None:
    take = harness.receive if receiving else harness.process
    assert take(*steps(2, 1)) == ["stored", "stored"]
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["k1", "k2"]
    assert take(*steps(3)) == ["stored" if receiving else "done"]


@pytest.mark.only(BOTH)
def test_only_the_keys_that_are_out_of_order_are_stored(
    world: World, harness: SequenceHarness
) -> None:
    batch = [step(2, "a"), step(1, "b"), step(1, "a"), step(2, "b"), step(2, "c")]
    assert harness.process(*batch) == ["stored", "done", "stored", "done", "blocked"]
    assert harness.ran() == ["b1", "b2"]
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["a1", "a2"]


@pytest.mark.only(SOME, quick=BOTH)
def test_a_waiting_message_says_which_sequence_number_it_waits_for(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(*steps(1, 4, 5), step(9, "other"))
    (detail,) = harness.message("k5")
    assert detail.message.state == "awaiting_sequence"
    assert (detail.message.attempts, detail.message.processed_at) == (0, None)
    assert detail.waits == "for sequence number 2 of its key; its own is 5"
    status = harness.look("status")
    assert (status.awaiting_sequence, status.gaps, status.ready, status.blocked) == (3, 2, 0, 0)
    assert abs(datetime.now(UTC) - status.oldest_gap) < timedelta(hours=1)
    harness.process(*steps(2, 3))
    harness.drain()
    (detail,) = harness.message("k5")
    assert (detail.message.state, detail.waits) == ("done", None)
    assert [attempt.outcome for attempt in detail.attempts] == ["done"]
    status = harness.look("status")
    assert (status.awaiting_sequence, status.gaps) == (1, 1)


@pytest.mark.only(BOTH)
def test_duplicates_of_waiting_messages_are_recognised(
    world: World, harness: SequenceHarness
) -> None:
    assert harness.process(*steps(2, 2)) == ["blocked", "duplicate"]
    assert harness.receive(*steps(2)) == ["duplicate"]
    assert harness.process(*steps(1, 2)) == ["stored", "duplicate"]
    assert harness.drain() == {"done": 2}
    assert harness.process(*steps(1, 2)) == ["duplicate"] * 2
    assert harness.ran() == ["k1", "k2"]


@pytest.mark.only(BOTH)
def test_a_message_that_waited_for_its_sequence_number_keeps_all_its_properties(
    world: World,
) -> None:
    seen: list[Message] = []

    def handle(message: Message, tx: Any) -> None:
        seen.append(message)

    harness = SequenceHarness(world)
    world.on(harness.inbox, "whole", handle)
    two = step(2, type="whole", time="2026-01-02T03:04:05Z", dataschema="v1")
    harness.process(two)
    harness.process(*steps(1))
    harness.drain()
    (message,) = seen
    assert (message.id, message.origin, message.key, message.type) == ("k2", "test", "k", "whole")
    assert message.payload == b'{"id":"k2"}'
    assert message.headers == {"content-type": "application/cloudevents+json"}
    assert message.occurred_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.only(BOTH)
def test_the_payload_of_a_waiting_message_is_stored_until_it_ran_even_if_payloads_are_not_kept(
    world: World,
) -> None:
    harness = SequenceHarness(world, keep_payload=False)
    harness.process(*steps(2))
    assert world.query("SELECT payload FROM oncebox_inbox") == [(None,)]
    harness.process(*steps(1))
    assert harness.drain() == {"done": 2}
    assert world.effects() == ["k1", "k2"]
    assert world.query("SELECT count(*) FROM oncebox_awaiting_sequence") == [(0,)]


@pytest.mark.only(BOTH)
def test_a_redelivered_message_that_waited_runs_isolated(
    world: World, harness: SequenceHarness
) -> None:
    harness.process(redelivered(step(3)), step(2))
    harness.process(*steps(1))
    isolated = world.query("SELECT message_id, isolated FROM oncebox_pending ORDER BY seq")
    assert [(id, bool(is_alone)) for id, is_alone in isolated] == [
        ("k1", False),
        ("k2", False),
        ("k3", True),
    ]
    assert harness.drain() == {"done": 3}
    assert harness.ran() == ["k1", "k2", "k3"]


@pytest.mark.only(("sqlalchemy-psycopg",))
@pytest.mark.parametrize("act", ["process", "receive"])
def test_sequence_numbers_are_refused_above_read_committed(world: World, act: str) -> None:
    SequenceHarness(world)
    world.use_database(world.database().execution_options(isolation_level="REPEATABLE READ"))
    harness = SequenceHarness(world)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        getattr(harness, act)(*steps(1))
    assert world.states() == {}


@pytest.mark.only(BOTH)
def test_each_consumer_has_its_own_sequence_numbers(world: World, harness: SequenceHarness) -> None:
    other = SequenceHarness(world, name="shipping")
    harness.process(*steps(1, 3))
    assert other.process(*steps(3)) == ["blocked"]
    assert other.missing() == [("k", "", 1, 3, 1)]
    assert harness.missing() == [("k", "", 2, 3, 1)]
    with pytest.raises(NotFound):
        other.gaps("skip", "unknown", why="x")
    other.gaps("skip", "k", why="not wanted")
    assert other.drain() == {"done": 1}
    assert harness.missing() == [("k", "", 2, 3, 1)]
