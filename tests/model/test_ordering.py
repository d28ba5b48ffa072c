"""The order in which messages of keys run, and their lanes and locks."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.model.ordering import LANES, in_key_order, lane, lock_number, runs

quick = settings(max_examples=60, deadline=None)


class Item(NamedTuple):
    number: int
    key: str | None
    batch: str | None = None


def key_of(item: Item) -> str | None:
    return item.key


def list_of(item: Item) -> str | None:
    return item.batch


def calls(items: list[Item]) -> list[list[Item]]:
    return list(runs(in_key_order(items, key_of), key_of, list_of))


batches = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([None, "x", "y", "z"])),
    max_size=9,
).map(lambda pairs: [Item(n, key, batch) for n, (key, batch) in enumerate(pairs)])


# printf '%s' "$name" | b2sum -l 64, modulo 64
@pytest.mark.parametrize(("name", "number"), [("order-1", 61), ("kunde-ü", 35)])
def test_a_lane_is_the_same_in_every_process(name: str, number: int) -> None:
    assert lane(name) == number


# printf 'billing\0order-1' | b2sum -l 64, as a signed number
@pytest.mark.parametrize(
    ("scope", "key", "number"),
    [("billing", "order-1", 7740653765918866831), ("a", "k", -5046535074751590020)],
)
def test_a_lock_number_is_the_same_in_every_process(scope: str, key: str, number: int) -> None:
    assert lock_number(scope, key) == number


@quick
@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(codec="utf-8")))
def test_lanes_and_locks_fit_their_columns(scope: str, key: str) -> None:
    assert 0 <= lane(key) < LANES
    assert -(2**63) <= lock_number(scope, key) < 2**63


def test_keys_are_spread_over_all_lanes() -> None:
    assert {lane(f"order-{n}") for n in range(1000)} == set(range(LANES))


@quick
@given(batches)
def test_key_order_keeps_the_arrival_order_within_a_key(items: list[Item]) -> None:
    ordered = in_key_order(items, key_of)
    assert ordered == sorted(items, key=lambda item: (item.key or "", item.number))


@quick
@given(batches)
def test_every_item_is_in_exactly_one_call(items: list[Item]) -> None:
    assert sorted(item.number for call in calls(items) for item in call) == list(range(len(items)))


@quick
@given(batches)
def test_single_items_are_called_one_by_one_and_lists_have_one_handler(items: list[Item]) -> None:
    for call in calls(items):
        assert len({item.batch for item in call}) == 1
        assert call[0].batch is not None or len(call) == 1


@quick
@given(batches)
def test_the_order_of_a_key_is_kept_across_calls_and_within_lists(items: list[Item]) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for call in calls(items):
        for item in call:
            if item.key is not None:
                seen[item.key].append(item.number)
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@quick
@given(batches)
def test_an_item_joins_a_list_only_when_its_keys_earlier_items_ran_or_are_in_it(
    items: list[Item],
) -> None:
    ran: set[int] = set()
    for call in calls(items):
        here = {item.number for item in call}
        for item in call:
            if item.key is not None:
                earlier = {i.number for i in items if i.key == item.key and i.number < item.number}
                assert earlier <= ran | here
        ran |= here


@quick
@given(st.lists(st.sampled_from([None, "a", "b"])))
def test_messages_of_one_batch_handler_are_one_call(keys: list[str | None]) -> None:
    items = [Item(n, key, "x") for n, key in enumerate(keys)]
    assert len(calls(items)) == min(len(items), 1)


def test_lists_of_several_handlers_are_as_long_as_order_allows() -> None:
    items = [
        Item(0, "a", "x"),
        Item(1, "b", "x"),
        Item(2, "a", "y"),
        Item(3, "b", None),
        Item(4, "c", "y"),
        Item(5, "b", "y"),
    ]
    assert [[item.number for item in call] for call in calls(items)] == [[0, 1], [4], [3], [2, 5]]


def test_items_without_a_key_wait_for_nothing() -> None:
    items = [Item(0, None, "x"), Item(1, None, None), Item(2, None, "x"), Item(3, None, "y")]
    assert [[item.number for item in call] for call in calls(items)] == [[1], [0, 2], [3]]
