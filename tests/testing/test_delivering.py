"""The parts of oncebox.testing that repeat, mix and count deliveries."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox import Inbox
from oncebox.errors import ConfigurationError
from oncebox.model.message import Delivery
from oncebox.model.outcome import Kind, Outcome
from oncebox.testing import adeliver, assert_kinds, deliver, disturbed

quick = settings(max_examples=100, deadline=None)

deliveries = st.lists(st.sampled_from([None, "a", "b"]), max_size=10).map(
    lambda keys: [Delivery(str(n).encode(), key=key) for n, key in enumerate(keys)]
)
seeds = st.integers(0, 2**32)
copies = st.integers(1, 4)


def outcome(kind: Kind, error: Exception | None = None) -> Outcome:
    return Outcome(kind, Delivery(b""), error=error)


@quick
@given(deliveries, copies, seeds)
def test_the_same_seed_gives_the_same_mix(given_: list[Delivery], times: int, seed: int) -> None:
    assert disturbed(given_, copies=times, seed=seed) == disturbed(given_, copies=times, seed=seed)


@quick
@given(deliveries, copies, st.none() | seeds)
def test_every_delivery_comes_as_often_as_asked(
    given_: list[Delivery], times: int, seed: int | None
) -> None:
    counts = Counter(delivery.body for delivery in disturbed(given_, copies=times, seed=seed))
    assert counts == {delivery.body: times for delivery in given_}


@quick
@given(deliveries, copies, seeds)
def test_the_order_within_a_broker_key_is_kept(
    given_: list[Delivery], times: int, seed: int
) -> None:
    mixed = disturbed(given_, copies=times, seed=seed)
    seen = {delivery.body: n for n, delivery in reversed(list(enumerate(mixed)))}
    for key in ("a", "b"):
        places = [seen[delivery.body] for delivery in given_ if delivery.key == key]
        assert places == sorted(places)


@quick
@given(deliveries, seeds)
def test_copies_do_not_change_the_order_of_the_originals(given_: list[Delivery], seed: int) -> None:
    mixed = disturbed(given_, copies=3, seed=seed)
    originals = disturbed(given_, copies=1, seed=seed)
    assert [mixed.index(delivery) for delivery in originals] == sorted(
        mixed.index(delivery) for delivery in originals
    )


def test_different_seeds_give_different_orders() -> None:
    given_ = [Delivery(str(n).encode()) for n in range(20)]
    one, two = disturbed(given_, seed=1), disturbed(given_, seed=2)
    assert one != two
    assert one != given_
    keyed = [Delivery(str(n).encode(), key="k") for n in range(20)]
    assert disturbed(keyed, seed=1) == keyed


def test_without_a_seed_copies_follow_their_original() -> None:
    one, two = Delivery(b"1"), Delivery(b"2")
    assert disturbed([one, two], copies=2) == [one, one, two, two]


def test_kinds_that_fit_pass() -> None:
    assert_kinds([outcome(Kind.done), outcome(Kind.done), outcome(Kind.dead)], done=2, dead=1)
    assert_kinds([outcome(Kind.done)], done=1, failed=0)
    assert_kinds([])


def test_kinds_that_do_not_fit_are_shown_with_their_errors() -> None:
    outcomes = [outcome(Kind.done), outcome(Kind.failed, ValueError("bad"))]
    with pytest.raises(AssertionError) as caught:
        assert_kinds(outcomes, done=2)
    assert str(caught.value) == (
        "expected {'done': 2}, got {'done': 1, 'failed': 1}\nfailed: ValueError('bad')"
    )


def test_kinds_that_were_not_named_do_not_pass() -> None:
    with pytest.raises(AssertionError, match=r"got \{'done': 1, 'duplicate': 1\}"):
        assert_kinds([outcome(Kind.done), outcome(Kind.duplicate)], done=1)


def test_a_misspelled_kind_is_named() -> None:
    with pytest.raises(AssertionError, match="unknown kinds of outcome: doen, parkd"):
        assert_kinds([], parkd=1, doen=1)


def test_a_list_of_deliveries_is_explained() -> None:
    inbox: Any = Inbox("billing", "sqlite:///x.db")
    with pytest.raises(ConfigurationError, match=r": deliver\(inbox, \*deliveries\)"):
        deliver(inbox, [Delivery(b"1")])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r": adeliver\(inbox, \*deliveries\)"):
        asyncio.run(adeliver(inbox, [Delivery(b"1")]))  # type: ignore[arg-type]
