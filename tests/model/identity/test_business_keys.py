"""Identities of business keys, coordinates, broker keys and Debezium."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.errors import ConfigurationError, MissingId
from oncebox.model.identity.rules import BusinessKey, Coordinates, Debezium, KafkaKey
from oncebox.model.message import Delivery, content_hash
from support.identities import as_json, quick

letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
parts = st.lists(st.text(letters, min_size=1, max_size=5), min_size=2, max_size=4)


def business_id(values: list[str]) -> str:
    names = [f"f{n}" for n in range(len(values))]
    return BusinessKey(*names, across_types=True)(
        as_json(**dict(zip(names, values, strict=True)))
    ).id


@quick
@given(parts, parts)
def test_different_business_keys_never_give_the_same_id(one: list[str], two: list[str]) -> None:
    assert (business_id(one) == business_id(two)) is (one == two)


@quick
@given(parts, st.sampled_from('|",[]\\ :/'))
def test_a_separator_inside_a_part_does_not_move_between_parts(
    values: list[str], separator: str
) -> None:
    first, second, *rest = values
    left = [first + separator + second, second, *rest]
    right = [first, separator + second + second, *rest]
    joined = [first + separator, second + second, *rest]
    assert len({business_id(each) for each in (left, right, joined)}) == 3


def test_a_business_key_of_one_field_is_the_value_of_that_field() -> None:
    assert BusinessKey("order.number", across_types=True)(as_json(order={"number": 17})).id == "17"


def test_duplicates_of_a_business_key_are_not_compared() -> None:
    identity = BusinessKey("customer", "order", type="type")
    message = identity(as_json(type="order", customer="c", order=1, clicked_at="now"))
    assert message.content_hash is None
    assert message.id == '["order","c","1"]'


def test_the_type_is_part_of_a_business_key() -> None:
    identity = BusinessKey("order", type="type")
    confirmed, cancelled = (
        identity(as_json(type=name, order=7)) for name in ("order.confirmed", "order.cancelled")
    )
    assert confirmed.id != cancelled.id
    same = BusinessKey("order", type="type", across_types=True)
    assert same(as_json(type="a", order=7)).id == same(as_json(type="b", order=7)).id == "7"


def test_a_business_key_without_a_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="across_types=True"):
        BusinessKey("order")


@pytest.mark.parametrize("bad", [None, "", True, 1.5, [], {}, "\0"])
def test_a_business_key_with_an_invalid_field_has_no_identity(bad: Any) -> None:
    with pytest.raises(MissingId, match="business key"):
        BusinessKey("a", "b", type="type")(as_json(a="1", b=bad))


def test_a_business_key_that_is_too_long_has_no_identity() -> None:
    with pytest.raises(MissingId, match="longer than 255 bytes"):
        BusinessKey("a", "b", type="type")(as_json(a="x" * 130, b="y" * 130))


def test_a_business_key_needs_a_field() -> None:
    with pytest.raises(ConfigurationError, match="at least one field"):
        BusinessKey()


def test_coordinates_name_a_message_by_its_place() -> None:
    identity = Coordinates(type="kind")
    message = identity(Delivery(b'{"kind": "t"}', source="orders", coordinates="3/17"))
    assert (message.id, message.type) == ('["orders","3/17"]', "t")
    with pytest.raises(MissingId, match="missing"):
        identity(Delivery(b'{"kind": "t"}', source="orders"))


def test_two_places_never_have_the_same_id() -> None:
    one = Coordinates()(Delivery(b"", source="orders/3", coordinates="17"))
    two = Coordinates()(Delivery(b"", source="orders", coordinates="3/17"))
    assert one.id != two.id


def test_a_kafka_key_names_a_message_in_text_or_bytes() -> None:
    assert KafkaKey()(Delivery(b"x", key="k")).id == "k"
    assert KafkaKey()(Delivery(b"x", key="ü".encode())).id == "ü"
    assert KafkaKey()(Delivery(b"x", key="k")).content_hash == content_hash(b"x")


@pytest.mark.parametrize("bad", [None, "", b"", b"\xff"])
def test_a_delivery_without_a_readable_kafka_key_has_no_identity(bad: str | bytes | None) -> None:
    with pytest.raises(MissingId):
        KafkaKey()(Delivery(b"x", key=bad))


ROUTED = {"id": b"e-1", "eventType": b"order.confirmed"}


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (b"o-1", b'{"total": 5}'),
        (b'"o-1"', b'{"total": 5}'),
        (b'"o-1"', rb'"{\"total\": 5}"'),
        (
            b'{"schema": {"type": "string"}, "payload": "o-1"}',
            b'{"schema": {"type": "struct"}, "payload": {"total": 5}}',
        ),
        ("o-1", rb'{"schema": {"type": "string"}, "payload": "{\"total\": 5}"}'),
    ],
)
def test_an_event_of_the_outbox_router_is_unwrapped(key: str | bytes, body: bytes) -> None:
    message = Debezium()(Delivery(body, headers=ROUTED, key=key))
    assert (message.id, message.type, message.key) == ("e-1", "order.confirmed", "o-1")
    assert json.loads(message.payload) == {"total": 5}


@pytest.mark.parametrize("body", [b"", b'"', b"{", b"\xff", b'"\xff"', b"null"])
def test_an_event_that_the_outbox_router_did_not_wrap_stays_unchanged(body: bytes) -> None:
    message = Debezium(type=None)(Delivery(body, headers=ROUTED))
    assert (message.payload, message.key, message.type) == (body, None, "")
