"""event(): every identity reads from it what the test asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from oncebox import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Delivery,
    Headers,
    Identity,
    Inbox,
    Json,
    KafkaKey,
    Message,
)
from oncebox.errors import ConfigurationError
from oncebox.model.identity.selectors import field, header
from oncebox.testing import assert_kinds, deliver, event
from support.identities import IDENTITIES

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def by_function(delivery: Delivery) -> Message:
    """An identity that is a function and reads the data of the user."""
    fields = json.loads(delivery.body)
    key = delivery.key if isinstance(delivery.key, str) else None
    return Message(id=fields["number"], payload=delivery.body, type=fields["kind"], key=key)


def from_cloud_events(delivery: Delivery) -> Message:
    """An identity that is a function and changes another one."""
    return msgspec.structs.replace(CloudEvents()(delivery), origin="all")


TYPED: dict[str, Identity] = {
    **{name: rule for name, rule in IDENTITIES.items() if name != "mixed"},
    "plain cloud events": CloudEvents(),
    "cloud events with a key": CloudEvents(key="order"),
    "json without origin": Json("id", type="type"),
    "selectors": Identity(lambda e: e.header("x-id") or e.header("y-id"), type=field("a.t")),
}


@pytest.mark.parametrize("rule", TYPED.values(), ids=list(TYPED))
def test_every_identity_reads_the_type_and_an_id(rule: Identity) -> None:
    one, two = (rule(event(rule, "order", {"total": 4200})) for _ in range(2))
    assert one.type == two.type == "order"
    assert one.id != two.id
    assert json.loads(one.payload)["total"] == 4200


@pytest.mark.parametrize("rule", TYPED.values(), ids=list(TYPED))
def test_every_identity_reads_the_id_that_the_test_passes(rule: Identity) -> None:
    parts = ("x", "7") if isinstance(rule, BusinessKey) else "x-7"
    one, two = (rule(event(rule, "order", {"total": 4200}, id=parts)) for _ in range(2))
    assert one.id == two.id
    assert "x" in one.id
    assert "7" in one.id


KEYED = {name: rule for name, rule in TYPED.items() if name != "kafka key"}


@pytest.mark.parametrize("rule", KEYED.values(), ids=list(KEYED))
def test_every_identity_reads_the_key_and_the_broker_has_it_too(rule: Identity) -> None:
    delivery = event(rule, "order", {"total": 4200}, key="k-1")
    assert rule(delivery).key == delivery.key == "k-1"


def test_everything_that_an_identity_reads_can_be_passed() -> None:
    rule = Json(
        "id", origin="o", type="t", version="v", key="k", time="at", sequence="n", epoch="e"
    )
    delivery = event(
        rule, "t", {}, id="i", origin="shop", version=3, key="k", time=NOON, sequence=5, epoch="b"
    )
    message = rule(delivery)
    assert (message.id, message.origin, message.type, message.version) == ("i", "shop", "t", 3)
    assert (message.key, message.sequence, message.epoch) == ("k", 5, "b")
    assert message.occurred_at == NOON


def test_keys_of_several_fields_are_tuples() -> None:
    rule = Json("id", type="type", key=("tenant", "order"), key_per_origin=True)
    message = rule(event(rule, "order", {}, key=("acme", 17)))
    assert message.key == '["default","acme","17"]'
    assert json.loads(message.payload)["order"] == 17


def test_values_in_the_data_stay() -> None:
    rule = BusinessKey("customer", "order.number", type="type")
    data = {"customer": "c-1", "order": {"number": "7"}}
    delivery = event(rule, "confirmed", data)
    assert rule(delivery).id == '["confirmed","c-1","7"]'
    assert data == {"customer": "c-1", "order": {"number": "7"}}


def test_a_time_that_no_field_has_is_that_of_the_broker() -> None:
    rule = Json("id", type="type")
    delivery = event(rule, "order", {}, time=NOON)
    assert delivery.timestamp == rule(delivery).produced_at == NOON


@pytest.mark.parametrize("data", [{"a": 1}, [1], "text", 7, None, b'{"a":  1}', b"\xff\x00"])
@pytest.mark.parametrize("binary", [False, True])
def test_cloud_events_are_structured_or_binary(data: Any, binary: bool) -> None:
    rule = CloudEvents()
    delivery = event(rule, "order", data, origin="shop", key="k", binary=binary)
    message = rule(delivery)
    assert (message.type, message.origin, message.key) == ("order", "shop", "k")
    assert ("ce_id" in delivery.headers) is binary
    assert message.payload == (data if isinstance(data, bytes) else msgspec.json.encode(data))


@pytest.mark.parametrize("data", [{"a": 1}, [1], "text", b"\xff\x00"])
@pytest.mark.parametrize("rule", [Headers("id", type="type"), Debezium()])
def test_data_beside_headers_may_be_anything(rule: Identity, data: Any) -> None:
    message = rule(event(rule, "order", data, headers={"x-trace": "t-1"}))
    assert message.payload == (data if isinstance(data, bytes) else msgspec.json.encode(data))
    assert message.headers["x-trace"] == "t-1"


@dataclass
class Confirmed:
    total: int
    at: datetime


class Shipped(pydantic.BaseModel):
    total: int
    at: datetime


@pytest.mark.parametrize("kind", [Confirmed, Shipped])
@pytest.mark.parametrize("rule", [CloudEvents(), Json("id", type="type")])
def test_data_may_be_an_object(rule: Identity, kind: Any) -> None:
    payload = json.loads(rule(event(rule, "order", kind(total=5, at=NOON))).payload)
    assert (payload["total"], datetime.fromisoformat(payload["at"])) == (5, NOON)


def test_what_the_source_adds_is_passed_on() -> None:
    delivery = event(
        CloudEvents(), "order", source="orders", coordinates="0/7", redelivered=True, receipt=9
    )
    assert (delivery.source, delivery.coordinates) == ("orders", "0/7")
    assert (delivery.redelivered, delivery.receipt) == (True, 9)


def test_an_identity_that_is_a_function_gets_the_data_or_a_cloud_event() -> None:
    delivery = event(by_function, "order", {"number": "7", "kind": "order"}, key="k")
    assert json.loads(delivery.body) == {"number": "7", "kind": "order"}
    assert delivery.key == "k"
    assert from_cloud_events(event(from_cloud_events, "order", {}, id="e-1")).id == "e-1"


def test_an_event_that_the_identity_would_read_otherwise_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"event\(\) takes your inbox .* first: event"):
        event("order", {})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="type='order' does not fit: the identity reads n"):
        event(Json("id"), "order", {})
    with pytest.raises(ConfigurationError, match=r"id='7' does not fit: .* field a, the field b"):
        event(BusinessKey("a", "b", type="t"), "order", {}, id="7")
    with pytest.raises(ConfigurationError, match=r"id='a', but the identity reads 'b'"):
        event(KafkaKey(type="t"), "order", {}, id="a", key="b")
    with pytest.raises(ConfigurationError, match=r"the data must be an object .*, got \[1\]"):
        event(Json("id", type="t"), "order", [1])
    with pytest.raises(ConfigurationError, match="The identity is a function: pass data"):
        event(by_function, "order", {"number": "7"})
    with pytest.raises(ConfigurationError, match="the identity cannot read this event"):
        event(Identity(lambda e: e.header("a")[50]), data={})  # type: ignore[index]
    joined = Identity(lambda e: f"{e.header('a')}/{e.header('b')}")
    with pytest.raises(ConfigurationError, match=r"id='7' does not fit: .*header a, the header b"):
        event(joined, data={}, id="7")


RULES: dict[str, Any] = {
    **TYPED,
    "coordinates": Coordinates(type=header("type")),
    "function": from_cloud_events,
}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_an_inbox_handles_its_event_once(rule: Any, tmp_path: Path) -> None:
    seen = []
    with Inbox("billing", f"sqlite:///{tmp_path}/inbox.db", identity=rule) as inbox:
        inbox.migrate()
        inbox.on("order")(lambda data: seen.append(data["total"]))
        events = [event(inbox, "order", {"total": total}) for total in (1, 2)]
        assert_kinds(deliver(inbox, *events, copies=2), done=2, duplicate=2)
    assert sorted(seen) == [1, 2]
