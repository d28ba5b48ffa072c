"""What is read and claimed of a batch."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox.errors import ConfigurationError
from oncebox.model.identity.rules import BusinessKey, Json
from oncebox.model.message import Delivery, Message
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Reason
from oncebox.model.retry import Retry
from oncebox.processing.handlers import Registry
from oncebox.processing.plan import Plan
from oncebox.processing.routing import Item, read_deliveries
from support.plans import IDENTITY, a, bad, decide, kinds, plan, registry


def test_a_delivery_that_cannot_be_read_is_kept_with_its_error() -> None:
    deliveries = [
        a("1"),
        Delivery(b"nonsense"),
        a("2", type_="unknown"),
        a("3", version=9),
        bad("4"),
        a("5", text="x" * 300),
        a("6", type_="ignored.thing"),
    ]
    items = read_deliveries(deliveries, IDENTITY, registry())
    assert [item.delivery for item in items] == deliveries
    assert [type(item.error).__name__ for item in items] == [
        "NoneType",
        "MissingId",
        "UnknownType",
        "UnknownVersion",
        "Undecodable",
        "PayloadTooLarge",
        "NoneType",
    ]
    assert [item.ignored for item in items] == [False] * 6 + [True]
    assert [item.message is None for item in items] == [False, True] + [False] * 5


def test_another_error_of_ours_is_not_swallowed() -> None:
    class Broken(Json):
        def __call__(self, delivery: Delivery) -> Message:
            raise ConfigurationError("no such tenant")

    with pytest.raises(ConfigurationError, match="no such tenant"):
        read_deliveries([a("1")], Broken("id"), registry())


def test_a_handler_that_runs_again_gets_a_fresh_payload() -> None:
    (item,) = read_deliveries([a("1", lines=[1])], IDENTITY, registry())
    first = item.payload()
    first["lines"].append(2)
    second = item.payload()
    assert second["lines"] == [1]
    assert second is not first


def test_a_payload_is_decoded_ahead_of_the_first_run() -> None:
    decodings = 0

    def lift(value: Any) -> Any:
        nonlocal decodings
        decodings += 1
        return value

    made = Registry(retry=Retry(), ordering=Ordering.strict, payload_limit=200)
    made.add(lambda payload: None, "t", 2)
    made.add_upcaster(lift, "t", 1)
    (item,) = read_deliveries([a("1")], IDENTITY, made)
    assert decodings == 1
    item.payload()
    assert decodings == 1
    item.payload()
    assert decodings == 2


def test_a_delivery_without_identity_has_no_payload_and_no_key() -> None:
    item = Item(a("1", "k"))
    item.decode()
    assert item.key is None


def test_only_the_first_of_each_identified_id_is_claimed() -> None:
    made = plan(
        a("1"), a("2"), a("1"), Delivery(b"?"), a("3", type_="ignored.x"), a("4", type_="unknown")
    )
    assert [arrival.message.id for arrival in made.arrivals] == ["1", "2", "4"]
    assert [arrival.delivery for arrival in made.arrivals] == [
        a("1"),
        a("2"),
        a("4", type_="unknown"),
    ]


def test_the_same_id_of_another_origin_is_another_message() -> None:
    identity = Json("id", type="type", origin="from")
    made = plan(a("1", **{"from": "x"}), a("1", **{"from": "y"}), identity=identity)
    assert len(made.arrivals) == 2


def test_copies_with_the_same_bytes_are_duplicates() -> None:
    made = plan(a("1"), a("1"), a("1"))
    made.done(decide(made, "n"))
    assert kinds(made) == ["done", "duplicate", "duplicate"]


def test_a_copy_with_other_bytes_is_left_to_the_claim() -> None:
    """Only the database knows which of the two, if any, was there before."""
    made = plan(a("1", total=1), a("1", total=2), a("1", total=1))
    made.done(decide(made, "nx"))
    assert kinds(made) == ["done", "quarantined", "duplicate"]
    assert made.outcomes[1].reason is Reason.payload_mismatch


def test_messages_of_one_business_key_may_differ() -> None:
    made = plan(a("1", total=1), a("1", total=2), identity=BusinessKey("id", type="type"))
    made.done(decide(made, "n"))
    assert kinds(made) == ["done", "duplicate"]


def test_a_received_message_is_stored_by_the_claim_and_not_run() -> None:
    made = plan(a("1", "k"), a("2", "k"), a("3"), a("1", "k"), receiving=True)
    assert made.is_receiving
    assert decide(made, "nwr") == []
    assert kinds(made) == ["stored", "blocked", "stored", "duplicate"]
    assert [entry.kept for entry in made.entries] == [True, True, True, False]
    assert not made.has_failures


def test_a_received_message_with_other_bytes_is_quarantined() -> None:
    made = plan(a("1"), a("2"), a("3"), Delivery(b"?"), a("4", type_="ignored.x"), receiving=True)
    assert decide(made, "xld") == []
    assert kinds(made) == ["quarantined", "quarantined", "duplicate", "quarantined", "ignored"]
    assert not any(entry.kept for entry in made.entries)


def test_a_received_message_is_not_decoded() -> None:
    (item,) = read_deliveries([bad("1")], IDENTITY, registry(), decode=False)
    assert item.error is None
    made = Plan([item], ordering=Ordering.strict, random=lambda: 0.5, receiving=True)
    decide(made, "n")
    assert kinds(made) == ["stored"]
