"""Ids that are refused, and messages whose identity the caller knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.errors import MissingId
from oncebox.model.identity.caller_messages import checked_message
from oncebox.model.identity.rules import BusinessKey, Headers, Identity, Json
from oncebox.model.message import Delivery, content_hash
from support.identities import (
    BROKER_TIME,
    IDENTITIES,
    PRODUCED_AT,
    TIME,
    ULID,
    UUID7,
    as_json,
    nested,
)


@pytest.mark.parametrize("size", ["x" * 255, "ü" * 127 + "x", "€" * 85, 10**254])
def test_an_id_of_255_bytes_is_taken(size: Any) -> None:
    assert Json("id")(as_json(id=size)).id == str(size)


@pytest.mark.parametrize("size", ["x" * 256, "ü" * 128, "€" * 85 + "x", 10**255])
def test_an_id_origin_or_key_of_256_bytes_is_refused(size: Any) -> None:
    identity = Json("id", origin="origin", key="key")
    for name in ("id", "origin", "key"):
        with pytest.raises(MissingId, match=f"the {name} is longer than 255 bytes"):
            identity(as_json(**{"id": 1, "origin": 1, "key": 1, name: size}))


@pytest.mark.parametrize("bad", [True, False, 1.5, [], {}, [1]])
def test_an_id_that_is_neither_text_nor_integer_is_refused(bad: Any) -> None:
    with pytest.raises(MissingId, match="must be text, an integer or a UUID"):
        Json("id")(as_json(id=bad))


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_missing_id_is_never_guessed(nothing: Any) -> None:
    for delivery in (as_json(id=nothing), as_json(other=1)):
        with pytest.raises(MissingId, match="the id is missing or empty"):
            Json("id")(delivery)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"id"',
        b'{"id": "a"',
        b'{"id": "a"} trailing',
        b'{"id": NaN}',
        b'{"id": 1e400}',
        b'{"id": "\xff"}',
        b'{"\xff": 1, "id": "a"}',
        b'{"id": "a\\u0000b"}',
        b'{"id": "\\ud800"}',
        b'{"id": ' + b"7" * 5000 + b"}",
        b'{"id": ' + nested(100_000) + b"}",
        nested(100_000),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_a_body_without_a_readable_id_has_no_identity(body: bytes) -> None:
    for identity in (
        Json("id"),
        BusinessKey("id", across_types=True),
        BusinessKey("id", "id", type="t"),
    ):
        with pytest.raises(MissingId):
            identity(Delivery(body))


def test_a_number_that_python_will_not_print_has_no_identity() -> None:
    with pytest.raises(MissingId, match="longer than 255 digits"):
        Identity(lambda envelope: 10**5000)(Delivery(b""))


def test_a_readable_id_does_not_excuse_an_unreadable_body() -> None:
    with pytest.raises(MissingId):
        Json("id", payload="d")(Delivery(b'{"id": "a", "d": ' + nested(100_000) + b"}"))


@pytest.mark.parametrize("bad", [b"\xff", "\udcff", "a\0", b"a\0"])
def test_a_header_or_key_that_no_database_stores_has_no_identity(bad: str | bytes) -> None:
    with pytest.raises(MissingId):
        Headers("id")(Delivery(b"", headers={"id": bad}))
    with pytest.raises(MissingId):
        Headers("id")(Delivery(b"", headers={"id": "1"}, key=bad))
    with pytest.raises(MissingId):
        Headers("id", type="type")(Delivery(b"", headers={"id": "1", "type": bad}))


json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([TIME, UUID7, ULID, "YQ==", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = ["id", "source", "type", "time", "data", "data_base64", "dataversion", "a", "b", "d", "k"]
objects = st.dictionaries(st.sampled_from([*names, "o", "t", "v", "at"]), json_value)
written = objects.map(lambda value: json.dumps(value).encode())


@st.composite
def cut(draw: st.DrawFn) -> bytes:
    """JSON with some bytes in the middle replaced."""
    body = draw(written)
    start = draw(st.integers(0, len(body)))
    return body[:start] + draw(st.binary(max_size=3)) + body[start + draw(st.integers(0, 3)) :]


header_values = st.text() | st.binary()
header_names = ["id", "o", "t", "ce-id", "ce-source", "ce-type", "ce-time", "CE_id", "at", "v"]


@pytest.mark.parametrize("name", list(IDENTITIES))
@settings(max_examples=30, deadline=None)
@given(
    body=st.binary() | written | cut(),
    headers=st.dictionaries(st.sampled_from(header_names), header_values),
    key=st.none() | st.text() | st.binary(),
    coordinates=st.none() | st.text(),
)
def test_every_delivery_has_a_storable_identity_or_none(
    name: str,
    body: bytes,
    headers: dict[str, str | bytes],
    key: str | bytes | None,
    coordinates: str | None,
) -> None:
    delivery = Delivery(body, headers=headers, key=key, coordinates=coordinates)
    try:
        message = IDENTITIES[name](delivery)
    except MissingId:
        return
    for text in filter(None, (message.id, message.origin, message.key)):
        assert 1 <= len(text.encode()) <= 255
        assert "\0" not in text
    assert type(message.version) is int
    assert 0 <= message.version < 2**31
    assert "\0" not in message.type


def test_a_callers_message_is_checked_like_any_other() -> None:
    message = checked_message(UUID7, key="k", payload=b"x", type="t", version=2)
    assert (message.id, message.key, message.payload, message.version) == (UUID7, "k", b"x", 2)
    assert message.produced_at == PRODUCED_AT
    assert message.content_hash == content_hash(b"x")
    for bad in ({"id": ""}, {"origin": "\0"}, {"key": ""}, {"key": "x" * 256}):
        with pytest.raises(MissingId):
            checked_message(**{"id": "1", **bad})  # type: ignore[arg-type]


def test_a_callers_message_without_a_payload_is_not_compared() -> None:
    message = checked_message("1", produced_at=BROKER_TIME)
    assert (message.content_hash, message.payload) == (None, b"")
    assert message.produced_at == BROKER_TIME
    assert checked_message("1", payload=b"").content_hash == content_hash(b"")
