"""What a delivery's id, origin, type, version, key and bytes are."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.errors import ConfigurationError, Unidentified
from oncebox.identity import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Headers,
    Identity,
    Json,
    KafkaKey,
    broker_key,
    checked_message,
    constant,
    field,
    header,
)
from oncebox.message import Delivery, content_hash

quick = settings(max_examples=60, deadline=None)

MINTED = datetime(2024, 6, 1, 0, 0, 0, 123_000, tzinfo=UTC)
UUID7 = "018fd118-947b-7000-8000-000000000000"
ULID = "01HZ8HH53V0000000000000000"
BROKER_TIME = datetime(2025, 1, 1, tzinfo=UTC)

IDENTITIES: dict[str, Identity] = {
    "cloud events": CloudEvents(version="dataversion"),
    "json": Json("id", origin="o", type="t", version="v", key="k.k", time="at", payload="d.d"),
    "headers": Headers("id", origin="o", type="t", version="v", key="k", time="at", payload="d"),
    "business key": BusinessKey("a", "b.c", type="t", version="v", time="at"),
    "coordinates": Coordinates(type="t", version="v", time="at"),
    "kafka key": KafkaKey(type="t", version="v", time="at"),
    "debezium": Debezium(version="v", time="at"),
    "mixed": Identity(header("id"), origin=field("o"), type=constant("t"), key=broker_key),
}


def as_json(**fields: Any) -> Delivery:
    return Delivery(json.dumps(fields).encode())


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


# -- CloudEvents ----------------------------------------------------------------------------------

ATTRIBUTES = {"id": "e-1", "source": "shop", "type": "order.confirmed", "partitionkey": "o-1"}
TIME = "2024-06-01T12:00:00Z"


def structured(**more: Any) -> Delivery:
    return Delivery(json.dumps({"specversion": "1.0", **ATTRIBUTES, "time": TIME, **more}).encode())


def binary(prefix: str, body: bytes, /, **more: str) -> Delivery:
    attributes = {**ATTRIBUTES, "time": TIME, **more}
    return Delivery(body, headers={f"{prefix}{k}": v for k, v in attributes.items()})


@pytest.mark.parametrize("encode", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", "cloudEvents_", "CE-"])
def test_both_modes_of_a_cloud_event_give_the_same_message(
    prefix: str, encode: Callable[[str], Any]
) -> None:
    identity = CloudEvents(version="dataversion")
    one = identity(structured(data={"total": 5}, dataversion=2))
    delivery = binary(prefix, b'{"total": 5}', dataversion="2")
    headers = {name: encode(str(value)) for name, value in delivery.headers.items()}
    two = identity(Delivery(delivery.body, headers=headers))
    properties = ("id", "origin", "type", "version", "key", "payload", "occurred_at", "minted_at")
    for name in (*properties, "content_hash"):
        assert getattr(one, name) == getattr(two, name)
    assert (one.id, one.origin, one.type, one.version, one.key) == (
        "e-1",
        "shop",
        "order.confirmed",
        2,
        "o-1",
    )
    assert one.occurred_at == datetime(2024, 6, 1, 12, tzinfo=UTC)


def test_a_partition_key_that_is_the_number_zero_is_a_key_in_both_modes() -> None:
    one = CloudEvents()(structured(partitionkey=0, data=1))
    two = CloudEvents()(binary("ce-", b"1", partitionkey="0"))
    assert one.key == two.key == "0"


def test_a_cloud_events_data_is_taken_exactly_as_written() -> None:
    body = b'{"id": "1", "source": "s", "type": "t", "data" :  {"b" : 1.0, "a": "\\u00e4"} }'
    assert CloudEvents()(Delivery(body)).payload == b'{"b" : 1.0, "a": "\\u00e4"}'


def test_binary_data_of_a_structured_event_is_decoded() -> None:
    encoded = base64.b64encode(b"\x00\xff").decode()
    assert CloudEvents()(structured(data_base64=encoded)).payload == b"\x00\xff"


@pytest.mark.parametrize("bad", ["%%%", "YQ", "ä", 5, True, ["YQ=="], {}])
def test_binary_data_that_is_not_base64_has_no_identity(bad: Any) -> None:
    with pytest.raises(Unidentified, match="data_base64"):
        CloudEvents()(structured(data_base64=bad))


def test_an_event_without_data_has_an_empty_payload() -> None:
    assert CloudEvents()(structured()).payload == b""
    assert CloudEvents()(structured(data_base64=None)).payload == b""
    assert CloudEvents()(binary("ce-", b"")).payload == b""


def test_an_events_null_data_is_the_json_null() -> None:
    assert CloudEvents()(structured(data=None)).payload == b"null"


def test_an_event_without_partition_key_takes_the_brokers_key() -> None:
    body = b'{"id": "1", "source": "s", "type": "t"}'
    assert CloudEvents()(Delivery(body, key=b"k")).key == "k"
    assert CloudEvents()(Delivery(body)).key is None
    assert CloudEvents(key="subject")(structured(subject="order")).key == "order"


def test_headers_without_an_id_do_not_make_a_binary_event() -> None:
    delivery = Delivery(structured(data=1).body, headers={"ce-type": "other", "traceparent": "x"})
    assert CloudEvents()(delivery).type == "order.confirmed"


def test_only_the_data_of_a_cloud_event_is_compared() -> None:
    one = CloudEvents()(structured(data=1, traceparent="a"))
    assert one.content_hash == CloudEvents()(structured(data=1, traceparent="b")).content_hash
    assert one.content_hash != CloudEvents()(structured(data=2, traceparent="a")).content_hash


@pytest.mark.parametrize("missing", ["id", "source"])
def test_an_event_without_id_or_source_has_no_identity(missing: str) -> None:
    for nothing in (None, ""):
        with pytest.raises(Unidentified, match="missing or empty"):
            CloudEvents()(structured(**{missing: nothing}))
    with pytest.raises(Unidentified, match="missing or empty"):
        CloudEvents()(binary("ce-", b"", **{missing: ""}))


# -- JSON fields and headers ----------------------------------------------------------------------


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
    with pytest.raises(Unidentified, match="the id is missing"):
        Json("a.id")(as_json(id=1))


def test_a_path_through_something_else_than_an_object_is_refused() -> None:
    with pytest.raises(Unidentified, match="cannot be read"):
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
    assert message.headers == delivery.headers


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
def test_an_empty_key_is_no_key(nothing: Any) -> None:
    assert Json("id", key="k")(as_json(id=1, k=nothing)).key is None


def test_a_selector_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no name"):
        Json("")
    with pytest.raises(ConfigurationError, match="5 selects nothing"):
        Json(5)  # type: ignore[arg-type]


# -- business keys, coordinates, broker keys ------------------------------------------------------

letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
parts = st.lists(st.text(letters, min_size=1, max_size=5), min_size=2, max_size=4)


def business_id(values: list[str]) -> str:
    names = [f"f{n}" for n in range(len(values))]
    return BusinessKey(*names)(as_json(**dict(zip(names, values, strict=True)))).id


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


def test_a_business_key_of_one_part_is_that_part() -> None:
    assert BusinessKey("order.number")(as_json(order={"number": 17})).id == "17"


def test_duplicates_of_a_business_key_are_not_compared() -> None:
    identity = BusinessKey("customer", "order")
    message = identity(as_json(customer="c", order=1, clicked_at="now"))
    assert message.content_hash is None
    assert message.id == '["c","1"]'


@pytest.mark.parametrize("bad", [None, "", True, 1.5, [], {}, "\0"])
def test_a_business_key_with_an_unusable_part_has_no_identity(bad: Any) -> None:
    with pytest.raises(Unidentified, match="business key"):
        BusinessKey("a", "b")(as_json(a="1", b=bad))


def test_a_business_key_whose_parts_are_too_long_together_has_no_identity() -> None:
    with pytest.raises(Unidentified, match="longer than 255 bytes"):
        BusinessKey("a", "b")(as_json(a="x" * 130, b="y" * 130))


def test_a_business_key_needs_a_field() -> None:
    with pytest.raises(ConfigurationError, match="at least one field"):
        BusinessKey()


def test_coordinates_name_a_message_by_its_place() -> None:
    identity = Coordinates(type="kind")
    message = identity(Delivery(b'{"kind": "t"}', source="orders", coordinates="3/17"))
    assert (message.id, message.type) == ('["orders","3/17"]', "t")
    with pytest.raises(Unidentified, match="missing"):
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
    with pytest.raises(Unidentified):
        KafkaKey()(Delivery(b"x", key=bad))


# -- Debezium -------------------------------------------------------------------------------------

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
def test_what_the_outbox_router_did_not_wrap_stays_as_it_is(body: bytes) -> None:
    message = Debezium(type=None)(Delivery(body, headers=ROUTED))
    assert (message.payload, message.key, message.type) == (body, None, "")


# -- what cannot be an id -------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["x" * 255, "ü" * 127 + "x", "€" * 85, 10**254])
def test_an_id_of_255_bytes_is_taken(size: Any) -> None:
    assert Json("id")(as_json(id=size)).id == str(size)


@pytest.mark.parametrize("size", ["x" * 256, "ü" * 128, "€" * 85 + "x", 10**255])
def test_an_id_origin_or_key_of_256_bytes_is_refused(size: Any) -> None:
    identity = Json("id", origin="origin", key="key")
    for name in ("id", "origin", "key"):
        with pytest.raises(Unidentified, match=f"the {name} is longer than 255 bytes"):
            identity(as_json(**{"id": 1, "origin": 1, "key": 1, name: size}))


@pytest.mark.parametrize("bad", [True, False, 1.5, [], {}, [1]])
def test_an_id_that_is_neither_text_nor_integer_is_refused(bad: Any) -> None:
    with pytest.raises(Unidentified, match="neither text nor an integer"):
        Json("id")(as_json(id=bad))


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_missing_id_is_never_guessed(nothing: Any) -> None:
    for delivery in (as_json(id=nothing), as_json(other=1)):
        with pytest.raises(Unidentified, match="the id is missing or empty"):
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
    for identity in (Json("id"), BusinessKey("id"), BusinessKey("id", "id")):
        with pytest.raises(Unidentified):
            identity(Delivery(body))


def test_a_number_that_python_will_not_print_has_no_identity() -> None:
    with pytest.raises(Unidentified, match="longer than 255 digits"):
        Identity(lambda envelope: 10**5000)(Delivery(b""))


def test_a_readable_id_does_not_excuse_an_unreadable_body() -> None:
    with pytest.raises(Unidentified):
        Json("id", payload="d")(Delivery(b'{"id": "a", "d": ' + nested(100_000) + b"}"))


@pytest.mark.parametrize("bad", [b"\xff", "\udcff", "a\0", b"a\0"])
def test_a_header_or_key_that_no_database_stores_has_no_identity(bad: str | bytes) -> None:
    with pytest.raises(Unidentified):
        Headers("id")(Delivery(b"", headers={"id": bad}))
    with pytest.raises(Unidentified):
        Headers("id")(Delivery(b"", headers={"id": "1"}, key=bad))
    with pytest.raises(Unidentified):
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
def test_whatever_arrives_has_a_storable_identity_or_none(
    name: str,
    body: bytes,
    headers: dict[str, str | bytes],
    key: str | bytes | None,
    coordinates: str | None,
) -> None:
    delivery = Delivery(body, headers=headers, key=key, coordinates=coordinates)
    try:
        message = IDENTITIES[name](delivery)
    except Unidentified:
        return
    for text in filter(None, (message.id, message.origin, message.key)):
        assert 1 <= len(text.encode()) <= 255
        assert "\0" not in text
    assert type(message.version) is int
    assert 0 <= message.version < 2**31
    assert "\0" not in message.type


# -- types and versions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_version", "version"),
    [
        ("2", 2),
        (2, 2),
        (None, 1),
        ("abc", 0),
        ("", 0),
        ("1.0", 0),
        (-1, 0),
        ("-1", 0),
        (0, 0),
        (2**31 - 1, 2**31 - 1),
        (2**31, 0),
        (2**40, 0),
        ("9" * 20, 0),
        (1.0, 0),
        ([], 0),
    ],
)
def test_a_version_is_a_positive_integer_or_zero(given_version: Any, version: int) -> None:
    assert Json("id", version="v")(as_json(id=1, v=given_version)).version == version


@pytest.mark.parametrize("flag", [True, False])
def test_a_boolean_is_no_version(flag: bool) -> None:
    version = Json("id", version="v")(as_json(id=1, v=flag)).version
    assert type(version) is int  # psycopg refuses a list of booleans and integers
    assert version == 0


def test_an_absent_version_is_one() -> None:
    assert Json("id", version="v")(as_json(id=1)).version == 1
    assert Json("id")(as_json(id=1)).version == 1


@pytest.mark.parametrize("absent", [None, 5, True, [], {}])
def test_a_type_that_is_not_text_is_no_type(absent: Any) -> None:
    assert Json("id", type="type")(as_json(id=1, type=absent)).type == ""


def test_an_endless_type_is_cut_and_cannot_be_taken_for_a_real_one() -> None:
    assert Json("id", type="type")(as_json(id=1, type="x" * 300)).type == "x" * 255 + "..."
    assert Json("id", type="type")(as_json(id=1, type="x" * 255)).type == "x" * 255


# -- times ----------------------------------------------------------------------------------------


def minted(id_: str, **fields: Any) -> datetime | None:
    body = as_json(id=id_, **fields).body
    return Json("id", time="time")(Delivery(body, timestamp=BROKER_TIME)).minted_at


@pytest.mark.parametrize("id_", [UUID7, UUID7.upper(), ULID, ULID.lower()])
def test_the_time_inside_an_id_comes_first(id_: str) -> None:
    assert minted(id_, time=TIME) == MINTED


def test_the_time_field_comes_before_the_brokers_time() -> None:
    assert minted("order-1", time=TIME) == datetime(2024, 6, 1, 12, tzinfo=UTC)
    assert minted("order-1") == BROKER_TIME
    assert Json("id")(as_json(id="order-1")).minted_at is None


def test_a_time_inside_the_id_is_not_when_it_occurred() -> None:
    assert Json("id", time="time")(as_json(id=UUID7)).occurred_at is None
    assert Json("id", time="time")(as_json(id=UUID7, time=TIME)).occurred_at != MINTED


@pytest.mark.parametrize(
    "id_",
    [
        "018fd118-947b-4000-8000-000000000000",  # version 4
        "018fd118-947b-7000-7000-000000000000",  # another variant
        "zzzzzzzz-zzzz-7000-8000-000000000000",
        "________-____-7000-8000-000000000000",
        "00000000-0000-7000-8000-000000000000",  # 1970
        "ffffffff-ffff-7000-8000-000000000000",  # the year 10889
        "00000000000000000000000000",
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "order-2024-06-01-000000017",
        "UIUIUIUIUI0000000000000000",
        UUID7[:-1],
        ULID + "0",
    ],
)
def test_an_id_that_only_looks_like_a_time_has_none(id_: str) -> None:
    assert minted(id_) == BROKER_TIME


@pytest.mark.parametrize(
    "id_",
    [
        "01HZ8HH53V-invoice-no-0017",
        "01700000000000000000000017",  # a number with leading zeros, not 2012
        "018fd118-947b-7000-8-order-number-17",
    ],
)
def test_an_id_is_a_ulid_or_uuid_only_as_a_whole(id_: str) -> None:
    assert minted(id_) == BROKER_TIME


@pytest.mark.parametrize(
    ("time", "occurred_at"),
    [
        ("2024-06-01T00:00:00.123Z", MINTED),
        ("2024-06-01T02:00:00.123+02:00", MINTED),
        ("2024-06-01T00:00:00.123", MINTED),
        (1717200000.123, MINTED),
        (1717200000123, MINTED),
        (1717200000, datetime(2024, 6, 1, tzinfo=UTC)),
        ("yesterday", None),
        ("2024-13-01T00:00:00Z", None),
        (True, None),
        ([], None),
        (-(10**17), None),
        (10**400, None),
        (1e300, None),
    ],
)
def test_a_time_is_text_or_a_count_of_seconds_or_milliseconds(
    time: Any, occurred_at: datetime | None
) -> None:
    assert Json("id", time="time")(as_json(id="x", time=time)).occurred_at == occurred_at


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_a_time_can_always_be_written_in_utc(time: str) -> None:
    """The zero of some languages' dates; asyncpg refuses what is not in the years 1 to 9999."""
    occurred_at = Json("id", time="time")(as_json(id="x", time=time)).occurred_at
    assert occurred_at is None or occurred_at.astimezone(UTC)


# -- a message whose identity the caller knows ----------------------------------------------------


def test_a_callers_message_is_checked_like_any_other() -> None:
    message = checked_message(UUID7, key="k", payload=b"x", type="t", version=2)
    assert (message.id, message.key, message.payload, message.version) == (UUID7, "k", b"x", 2)
    assert message.minted_at == MINTED
    assert message.content_hash == content_hash(b"x")
    for bad in ({"id": ""}, {"origin": "\0"}, {"key": ""}, {"key": "x" * 256}):
        with pytest.raises(Unidentified):
            checked_message(**{"id": "1", **bad})  # type: ignore[arg-type]


def test_a_callers_message_without_a_payload_is_not_compared() -> None:
    message = checked_message("1", minted_at=BROKER_TIME)
    assert (message.content_hash, message.payload) == (None, b"")
    assert message.minted_at == BROKER_TIME
    assert checked_message("1", payload=b"").content_hash == content_hash(b"")
