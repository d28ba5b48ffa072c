"""Identities of JSON fields and headers, and keys of several fields."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from oncebox.errors import ConfigurationError, MissingId
from oncebox.model.identity.rules import CloudEvents, Headers, Identity, Json
from oncebox.model.identity.selectors import constant, field, header
from oncebox.model.message import Delivery, content_hash
from support.identities import as_json


def test_json_fields_are_found_by_dotted_paths() -> None:
    identity = Json("meta.id", origin="meta.from", type="meta.type", key="order.customer.id")
    delivery = as_json(
        meta={"id": 17, "from": "shop", "type": "order"}, order={"customer": {"id": "c-1"}}
    )
    message = identity(delivery)
    assert (message.id, message.origin, message.type) == ("17", "shop", "order")
    assert (message.key, message.payload) == ("c-1", delivery.body)


def test_a_path_through_a_missing_object_finds_nothing() -> None:
    assert Json("id", key="a.b.c")(as_json(id=1)).key is None
    assert Json("id", key="a.b.c")(as_json(id=1, a={})).key is None
    with pytest.raises(MissingId, match="the id is missing"):
        Json("a.id")(as_json(id=1))


def test_a_path_through_something_else_than_an_object_is_refused() -> None:
    with pytest.raises(MissingId, match="cannot be read"):
        Json("id", key="a.b")(as_json(id=1, a="text"))


def test_a_payload_field_is_taken_exactly_as_written() -> None:
    body = b'{"id": 1, "data":  { "x" : 1.50,\n "y":"\\u0041" } , "z": 0}'
    message = Json("id", payload="data")(Delivery(body))
    assert message.payload == b'{ "x" : 1.50,\n "y":"\\u0041" }'
    assert message.content_hash == content_hash(message.payload)


def test_a_missing_payload_field_is_an_empty_payload() -> None:
    assert Json("id", payload="data")(as_json(id=1)).payload == b""


def test_without_a_payload_field_the_whole_body_is_compared() -> None:
    one, two = as_json(id=1, x=1), as_json(id=1, x=2)
    assert Json("id")(one).content_hash == content_hash(one.body)
    assert Json("id")(one).content_hash != Json("id")(two).content_hash
    assert Json("id", compare=False)(one).content_hash is None


def test_headers_are_found_in_any_case_as_text_or_bytes() -> None:
    identity = Headers("Message-Id", type="event-type")
    delivery = Delivery(b"\xff", headers={"message-ID": b"m-1", "Event-Type": "order"})
    message = identity(delivery)
    assert (message.id, message.type, message.payload) == ("m-1", "order", b"\xff")
    assert message.headers == {"message-ID": "m-1", "Event-Type": "order"}


def test_headers_are_never_compared() -> None:
    one = Headers("id")(Delivery(b"x", headers={"id": "1", "attempt": "1"}))
    two = Headers("id")(Delivery(b"x", headers={"id": "1", "attempt": "2"}))
    assert one.content_hash == two.content_hash == content_hash(b"x")


def test_an_identity_mixes_headers_fields_constants_and_the_brokers_key() -> None:
    identity = Identity(
        header("id"), origin=constant("shop"), type=field("kind"), version=constant(3)
    )
    message = identity(Delivery(b'{"kind": "order"}', headers={"id": "h-1"}, key="k"))
    assert (message.id, message.origin, message.type) == ("h-1", "shop", "order")
    assert (message.version, message.key) == (3, "k")


def test_an_identity_without_a_key_selects_none() -> None:
    assert Json("id", key=None)(Delivery(b'{"id": 1}', key="k")).key is None


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_key_is_not_a_key(nothing: Any) -> None:
    assert Json("id", key="k")(as_json(id=1, k=nothing)).key is None


def test_a_selector_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is empty"):
        Json("")
    with pytest.raises(ConfigurationError, match="5 is not a selector"):
        Json(5)  # type: ignore[arg-type]


def key_of(identity: Identity, **fields: Any) -> str | None:
    return identity(as_json(id="m", **fields)).key


def test_a_key_may_be_composed_of_several_fields() -> None:
    identity = Json("id", key=("tenant", "order.id"))
    assert key_of(identity, tenant="a", order={"id": 7}) == '["a","7"]'


def test_composed_keys_of_different_parts_are_different() -> None:
    identity = Json("id", key=("a", "b"))
    keys = {key_of(identity, a=a, b=b) for a, b in (("x,y", "z"), ("x", "y,z"), ("x", "y"))}
    assert len(keys) == 3


def test_a_composed_key_without_any_field_is_not_a_key() -> None:
    assert key_of(Json("id", key=("a", "b"))) is None
    assert key_of(Json("id", key=("a", "b"), key_per_origin=True)) is None


def test_a_composed_key_without_one_of_its_fields_has_no_identity() -> None:
    """A guess would mix the orders of all tenants that are missing."""
    with pytest.raises(MissingId, match="part of the key is missing"):
        key_of(Json("id", key=("tenant", "order")), order=7)


def test_a_composed_key_that_is_too_long_has_no_identity() -> None:
    with pytest.raises(MissingId, match="key is longer than 255 bytes"):
        key_of(Json("id", key=("a", "b")), a="x" * 200, b="y" * 200)


def test_keys_may_be_scoped_by_origin() -> None:
    shared, scoped = (
        Json("id", origin="tenant", key="order", key_per_origin=scope) for scope in (False, True)
    )
    assert key_of(shared, tenant="a", order=7) == key_of(shared, tenant="b", order=7) == "7"
    assert key_of(scoped, tenant="a", order=7) == '["a","7"]'
    assert key_of(scoped, tenant="b", order=7) == '["b","7"]'


def test_cloud_events_are_scoped_by_their_source() -> None:
    fields = {"source": "/a", "type": "t", "partitionkey": "7", "data": {}}
    assert key_of(CloudEvents(key_per_origin=True), **fields) == '["/a","7"]'
    assert key_of(CloudEvents(key=("source", "partitionkey")), **fields) == '["/a","7"]'
    without = {"source": "/a", "type": "t", "data": {}}
    delivery = as_json(id="m", **without)
    keyed = Delivery(delivery.body, key=b"broker")
    assert CloudEvents(key=("tenant", "partitionkey"))(keyed).key == "broker"


@pytest.mark.parametrize("key", [(), 7, ("",), ("a", 7)])
def test_a_key_without_selectors_is_refused(key: Any) -> None:
    with pytest.raises(ConfigurationError):
        Json("id", key=key)


def test_an_id_may_be_a_uuid() -> None:
    value = uuid.UUID("018f0000-0000-7000-8000-000000000000")
    identity = Identity(lambda envelope: value)
    message = identity(Delivery(b""))
    assert message.id == str(value)
    assert message.produced_at is not None
