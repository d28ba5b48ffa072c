"""Stored messages of a key run in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncebox import Ordering, Reject
from support.inboxes import LATER, InboxHarness, keyed
from support.tables import dead_letters, make_retries_due
from support.worlds import BOTH, SOME, World, write_effect


def test_a_failed_message_blocks_what_is_stored_behind_it(world: World) -> None:
    """Also what was not in its batch; and it runs in order once the head is through."""
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError()
    harness.receive(*[keyed(str(n)) for n in range(1, 6)])
    assert harness.drain(batch=2) == {"failed": 1, "blocked": 1}
    assert world.pending() == [("1", 1, "retrying"), *[(f"{n}", 0, "blocked") for n in range(2, 6)]]
    assert harness.process(keyed("6")) == ["blocked"]
    assert harness.receive(keyed("7")) == ["blocked"]
    harness.bad.clear()
    harness.ran()
    make_retries_due(world)
    assert harness.drain(batch=2) == {"done": 7}
    assert harness.ran() == [str(n) for n in range(1, 8)]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_two_failing_keys_wait_separately(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad |= {"a1": ValueError(), "b2": ValueError()}
    harness.receive(*[keyed(f"{key}{n}", key) for n in (1, 2, 3) for key in "abc"])
    assert harness.drain() == {"failed": 2, "blocked": 3, "done": 4}
    assert world.effects() == ["b1", "c1", "c2", "c3"]
    assert sorted(world.pending()) == [
        ("a1", 1, "retrying"),
        ("a2", 0, "blocked"),
        ("a3", 0, "blocked"),
        ("b2", 1, "retrying"),
        ("b3", 0, "blocked"),
    ]
    del harness.bad["a1"]
    make_retries_due(world)
    harness.ran()
    assert harness.drain() == {"failed": 1, "done": 3}
    assert [id for id in harness.ran() if id[0] == "a"] == ["a1", "a2", "a3"]
    assert world.pending() == [("b2", 2, "retrying"), ("b3", 0, "blocked")]


@pytest.mark.only(BOTH)
def test_a_released_message_that_fails_blocks_what_is_behind_it(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad |= {"1": ValueError(), "2": ValueError()}
    harness.receive(keyed("1"), keyed("2"), keyed("3"))
    harness.drain()
    del harness.bad["1"]
    make_retries_due(world)
    assert harness.drain() == {"done": 1, "failed": 1, "blocked": 1}
    assert world.pending() == [("2", 1, "retrying"), ("3", 0, "blocked")]


@pytest.mark.only(SOME)
def test_a_dead_letter_blocks_its_key(world: World, harness: InboxHarness) -> None:
    harness.bad["1"] = Reject("no")
    harness.receive(keyed("1"), keyed("2"))
    assert harness.drain() == {"dead": 1, "blocked": 1}
    assert harness.process(keyed("3")) == ["blocked"]
    assert harness.receive(keyed("4")) == ["blocked"]
    assert harness.drain() == {}
    assert world.pending() == [(str(n), 0, "blocked") for n in (2, 3, 4)]
    assert world.effects() == []


@pytest.mark.only(BOTH)
@pytest.mark.parametrize("error", [Reject("no"), ValueError("never")])
def test_with_skip_dead_a_key_continues_behind_its_dead_letter(
    world: World, error: Exception
) -> None:
    harness = InboxHarness(world, ordering=Ordering.skip_dead)
    harness.bad["1"] = error
    harness.receive(keyed("1"), keyed("2"))
    counts = harness.drain()
    assert (counts["dead"], counts["done"]) == (1, 1)
    assert world.effects() == ["2"]
    assert world.pending() == []
    assert harness.process(keyed("3")) == ["done"]


@pytest.mark.only(BOTH)
def test_a_stored_message_whose_type_is_ignored_now_releases_its_key(world: World) -> None:
    harness = InboxHarness(world, retry=LATER)
    harness.bad["1"] = ValueError()
    assert harness.receive(keyed("1", type="order"), keyed("2", type="other")) == ["stored"] * 2
    world.on(harness.inbox, "other", harness.handle)
    assert harness.drain() == {"failed": 1, "blocked": 1}
    make_retries_due(world)
    today = world.inbox(retry=LATER)
    world.on(today, "other", harness.handle)
    today.ignore("order")
    assert world.drain(today) == {"ignored": 1, "done": 1}
    assert world.effects() == ["2"]
    assert world.pending() == []


@pytest.mark.only(SOME)
def test_batch_handlers_get_lists_and_only_the_bad_message_fails(
    world: World, harness: InboxHarness
) -> None:
    sizes: list[int] = []

    def handle(payloads: list[dict[str, Any]], tx: Any) -> Iterator[Any]:
        sizes.append(len(payloads))
        for payload in payloads:
            yield from write_effect(payload, tx)
        if any(payload["id"] == "b5" for payload in payloads):
            raise Reject("no")

    world.on(harness.inbox, "many", handle, batch=True)
    harness.receive(*[keyed(f"b{n}", "k" if n < 3 else f"l{n}", type="many") for n in range(9)])
    assert harness.drain() == {"done": 8, "dead": 1}
    assert world.effects() == [f"b{n}" for n in range(9) if n != 5]
    assert max(sizes) > 1
    assert [letter[0] for letter in dead_letters(world)] == ["b5"]


@pytest.mark.only(BOTH)
def test_two_consumers_drain_each_their_own(world: World) -> None:
    billing, shipping = InboxHarness(world), InboxHarness(world, name="shipping", retry=LATER)
    shipping.bad["1"] = ValueError()
    for harness in (billing, shipping):
        harness.receive(keyed("1"), keyed("2"))
    assert shipping.drain() == {"failed": 1, "blocked": 1}
    assert billing.drain() == {"done": 2}, "another consumer's failure holds nothing here"
    make_retries_due(world)
    shipping.bad.clear()
    assert shipping.drain() == {"done": 2}


def test_more_than_one_batch_is_drained_and_key_order_is_kept(
    world: World, harness: InboxHarness
) -> None:
    batch = [keyed(f"{n:02}", str(n % 5) if n % 7 else None) for n in range(40)]
    assert harness.receive(*batch) == ["stored"] * 40
    assert harness.drain(batch=3) == {"done": 40}
    ran = harness.ran()
    assert sorted(ran) == [f"{n:02}" for n in range(40)]
    for key in range(5):
        of_key = [id for id in ran if int(id) % 7 and int(id) % 5 == key]
        assert of_key == sorted(of_key)
