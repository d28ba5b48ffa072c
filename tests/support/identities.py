"""Identities for the tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings

from oncebox import Message
from oncebox.errors import MissingId
from oncebox.model.identity.rules import (
    BusinessKey,
    CloudEvents,
    Coordinates,
    Debezium,
    Headers,
    Identity,
    Json,
    KafkaKey,
)
from oncebox.model.identity.selectors import broker_key, constant, field, header
from oncebox.model.message import Delivery


class FixableIdentity(CloudEvents):
    """An identity that refuses every delivery until `fixed` is true."""

    fixed = False

    def __call__(self, delivery: Delivery) -> Message:
        if not self.fixed:
            raise MissingId("who is it?")
        return super().__call__(delivery)


quick = settings(max_examples=60, deadline=None)
PRODUCED_AT = datetime(2024, 6, 1, 0, 0, 0, 123_000, tzinfo=UTC)
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


ATTRIBUTES = {"id": "e-1", "source": "shop", "type": "order.confirmed", "partitionkey": "o-1"}
TIME = "2024-06-01T12:00:00Z"


def structured(**more: Any) -> Delivery:
    return Delivery(json.dumps({"specversion": "1.0", **ATTRIBUTES, "time": TIME, **more}).encode())


def binary(prefix: str, body: bytes, /, **more: str) -> Delivery:
    attributes = {**ATTRIBUTES, "time": TIME, **more}
    return Delivery(body, headers={f"{prefix}{k}": v for k, v in attributes.items()})
