"""The identity of CloudEvents."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from oncebox.errors import MissingId
from oncebox.model.identity.rules import CloudEvents
from oncebox.model.message import Delivery
from support.identities import binary, structured


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
    properties = ("id", "origin", "type", "version", "key", "payload", "occurred_at", "produced_at")
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
    with pytest.raises(MissingId, match="data_base64"):
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
        with pytest.raises(MissingId, match="missing or empty"):
            CloudEvents()(structured(**{missing: nothing}))
    with pytest.raises(MissingId, match="missing or empty"):
        CloudEvents()(binary("ce-", b"", **{missing: ""}))
