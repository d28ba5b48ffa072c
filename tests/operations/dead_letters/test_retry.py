"""Dead letters are retried or discarded."""

from __future__ import annotations

import pytest

from oncebox import Ordering, Reject
from support.inboxes import AT_ONCE, LATER, ONCE, InboxHarness, keyed, make_dead_letters
from support.tables import audit_entries, dead_letters
from support.worlds import BOTH, SOME, World, order


def test_a_retried_dead_letter_runs_first_in_its_key_and_its_followers_after_it(
    world: World, harness: InboxHarness
) -> None:
    make_dead_letters(harness, keyed("1"))
    assert harness.receive(keyed("2")) == ["blocked"]
    assert harness.process(keyed("3"), order("4")) == ["blocked", "done"]
    assert harness.drain() == {}
    harness.ran()
    (letter,) = harness.dead("find")
    acted = harness.dead("retry", letter.id, why="fixed", by="ada")
    assert (acted.done, acted.left) == (1, 0)
    assert harness.dead("find") == []
    assert harness.process(keyed("5")) == ["blocked"], "it must not overtake"
    assert harness.drain() == {"done": 4}
    assert harness.ran() == ["1", "2", "3", "5"]
    assert world.pending() == []
    assert audit_entries(world) == [("retry", "ada", "fixed", "1", "out_of_attempts")]


@pytest.mark.only(SOME)
def test_a_retried_dead_letter_that_fails_again_blocks_its_key_again(
    world: World, harness: InboxHarness
) -> None:
    make_dead_letters(harness, keyed("1"))
    harness.receive(keyed("2"), keyed("3"))
    harness.bad["1"] = ValueError("still")
    harness.dead("retry", key="k", why="fixed?")
    assert harness.drain() == {"dead": 1}
    assert world.pending() == [("2", 0, "blocked"), ("3", 0, "blocked")]
    assert [row[-1] for row in dead_letters(world)] == ["ValueError: still"]
    harness.bad.clear()
    harness.dead("retry", key="k", why="fixed!")
    assert harness.drain() == {"done": 3}
    assert [row[2] for row in audit_entries(world)] == ["fixed?", "fixed!"]


@pytest.mark.only(BOTH)
def test_a_retried_dead_letter_that_fails_is_retried_by_its_policy(world: World) -> None:
    harness = InboxHarness(world, retry=AT_ONCE)
    harness.bad["1"] = ValueError("never")
    harness.receive(keyed("1"), keyed("2"))
    harness.drain()
    harness.dead("retry", key="k", why="fixed?")
    counts = harness.drain()
    assert counts["dead"] == 1
    assert counts["failed"] >= 1
    assert world.pending() == [("2", 0, "blocked")]


@pytest.mark.only(BOTH)
def test_several_dead_letters_of_one_key_are_retried_in_their_order(world: World) -> None:
    harness = InboxHarness(world, retry=ONCE, ordering=Ordering.skip_dead)
    make_dead_letters(harness, keyed("1"), keyed("2"), keyed("3"))
    harness.process(keyed("4"))
    harness.ran()
    ids = [letter.id for letter in harness.dead("find")]
    assert harness.dead("retry", ids[2], ids[0], why="fixed").done == 2
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["1", "3"]
    assert [letter.message_id for letter in harness.dead("find")] == ["2"]


@pytest.mark.only(BOTH)
def test_a_retried_dead_letter_runs_before_a_retrying_message_of_its_key(world: World) -> None:
    """What was the head of the key waits for what is older."""
    harness = InboxHarness(world, retry=ONCE, ordering=Ordering.skip_dead)
    make_dead_letters(harness, keyed("1"))
    world.on(harness.inbox, "patient", harness.handle, retry=LATER)
    harness.bad["2"] = ValueError()
    assert harness.process(keyed("2", type="patient"), keyed("3")) == ["failed", "blocked"]
    harness.bad = {"1": ValueError("still")}
    harness.ran()
    harness.dead("retry", key="k", why="fixed?")
    assert harness.drain()["dead"] == 1
    assert harness.ran() == ["1", "2", "3"]


@pytest.mark.only(SOME)
def test_dead_letters_without_keys_are_retried(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, order("1"), order("2"))
    assert harness.dead("retry", type="order", why="fixed").done == 2
    assert harness.drain() == {"done": 2}
    assert world.states() == {"1": "done", "2": "done"}


@pytest.mark.only(BOTH)
def test_a_dead_letter_of_an_unknown_type_runs_once_it_has_a_handler(
    world: World, harness: InboxHarness
) -> None:
    assert harness.process(keyed("1", type="new")) == ["dead"]
    world.on(harness.inbox, "new", harness.handle)
    harness.dead("retry", reason="unknown_type", why="deployed")
    assert harness.drain() == {"done": 1}


def test_a_discarded_dead_letter_releases_its_key(world: World, harness: InboxHarness) -> None:
    make_dead_letters(harness, keyed("1"))
    harness.receive(keyed("2"))
    harness.process(keyed("3"))
    (letter,) = harness.dead("find")
    assert harness.dead("discard", letter.id, why="a test order", by="ada").done == 1
    assert world.states() == {"1": "discarded", "2": "pending", "3": "pending"}
    assert harness.drain() == {"done": 2}
    assert harness.ran() == ["2", "3"]
    assert world.effects() == ["2", "3"]
    assert audit_entries(world) == [("discard", "ada", "a test order", "1", "out_of_attempts")]
    assert harness.process(keyed("1")) == ["duplicate"], "it does not come back"
    assert harness.process(keyed("4")) == ["done"]


@pytest.mark.only(BOTH)
def test_followers_are_released_up_to_the_next_dead_letter_that_blocks(
    world: World, harness: InboxHarness
) -> None:
    """Two dead letters block one key, as after a retry that failed behind another dead letter."""
    make_dead_letters(harness, keyed("1"))
    harness.receive(keyed("2"), keyed("3"), keyed("4"))
    (first,) = harness.dead("find")
    harness.dead("discard", first.id, why="first")
    harness.bad["3"] = Reject("no")
    assert harness.drain()["done"] == 1
    harness.bad.clear()
    assert world.pending() == [("4", 0, "blocked")]
    (second,) = harness.dead("find")
    assert second.message_id == "3"
    harness.dead("discard", second.id, why="second")
    assert harness.drain() == {"done": 1}
    assert world.effects() == ["2", "4"]
