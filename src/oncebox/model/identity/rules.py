"""The ready-made identities: Json, Headers, CloudEvents, BusinessKey, Debezium and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.model.identity.base import Identity, Key, identified
from oncebox.model.identity.caller_messages import valid_message
from oncebox.model.identity.selectors import (
    Envelope,
    Selector,
    attribute,
    broker_coordinates,
    broker_key,
    cloud_event_data,
    header,
    key_of,
    structured_event,
    together,
    unwrapped,
)
from oncebox.model.identity.validation import name, type_name, utf8
from oncebox.model.message import Delivery, Message

__all__ = [
    "BusinessKey",
    "CloudEvents",
    "Coordinates",
    "CustomIdentity",
    "Debezium",
    "Headers",
    "Identity",
    "Json",
    "KafkaKey",
    "checked_identity",
]


class Json(Identity):
    """Identity from fields of a JSON body: `Json(id="event_id", type="type", key="order.id")`."""


class Headers(Identity):
    """Identity from headers: `Headers(id="message-id", type="event-type")`."""

    select = staticmethod(header)


class CloudEvents(Identity):
    """Identity from the attributes of CloudEvents, binary or structured.

    The same id with other data is quarantined.
    """

    select = staticmethod(attribute)

    def __init__(
        self,
        *,
        version: str | Selector | None = None,
        key: Key | None = None,
        key_per_origin: bool = False,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
    ) -> None:
        self._is_plain = version is None and key is None and sequence is None
        partition = self._key_selector(key or "partitionkey")
        super().__init__(
            "id",
            origin="source",
            type="type",
            version=version,
            key=lambda envelope: _first(partition(envelope), broker_key(envelope)),
            key_per_origin=key_per_origin,
            time="time",
            sequence=sequence,
            epoch=epoch,
        )

    def payload(self, envelope: Envelope) -> bytes:
        return cloud_event_data(envelope)

    def _identify(self, delivery: Delivery) -> Message:
        # The usual case, structured events without extensions: decode all attributes at once.
        if not self._is_plain or delivery.headers:
            return super()._identify(delivery)
        event = structured_event(delivery.body)
        data = bytes(event.data)
        if not data:
            return super()._identify(delivery)
        return self._message(
            delivery,
            id=event.id,
            origin=event.source,
            type=event.type,
            version=1,
            key=_first(event.partitionkey, key_of(delivery)),
            time=event.time,
            payload=data,
        )


class BusinessKey(Identity):
    """Identity from business fields: `BusinessKey("customer_id", "order_number", type="type")`.

    Two events of one type for one order are one message, even if their event ids differ. The type
    is part of the identity, so that `order.cancelled` is not a duplicate of `order.confirmed`. With
    `across_types`, an order is handled once, whatever the type. Payloads are never compared,
    because duplicates differ: each double click has its own time.
    """

    def __init__(
        self,
        *fields: str | Selector,
        origin: str | Selector | None = None,
        type: str | Selector | None = None,
        across_types: bool = False,
        version: str | Selector | None = None,
        key: Key | None = broker_key,
        key_per_origin: bool = False,
        time: str | Selector | None = None,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
        payload: str | None = None,
    ) -> None:
        if not fields:
            raise ConfigurationError("BusinessKey needs at least one field")
        if type is None and not across_types:
            raise ConfigurationError(
                'BusinessKey needs the field of the message type, as in type="type": without it, a '
                "cancellation would be a duplicate of its order. Pass across_types=True to handle "
                "one message per business key, whatever its type"
            )
        self._across_types = across_types
        self._parts = [self._selector(part) for part in fields]
        super().__init__(
            self._compose,
            origin=origin,
            type=type,
            version=version,
            key=key,
            key_per_origin=key_per_origin,
            time=time,
            sequence=sequence,
            epoch=epoch,
            payload=payload,
            compare=False,
        )

    def _compose(self, envelope: Envelope) -> str:
        parts = [name(part(envelope), "business key") for part in self._parts]
        if not self._across_types:
            parts.insert(0, type_name(self._type(envelope)))
        return parts[0] if len(parts) == 1 else together(parts)


def _first(value: Any, otherwise: Any) -> Any:
    empty = value is None or value == "" or (isinstance(value, list) and not any(value))
    return otherwise if empty else value


class Coordinates(Identity):
    """Identity from the broker's coordinates: each place in a topic is one message.

    A message that its producer sends twice is two messages.
    """

    def __init__(self, **properties: Any) -> None:
        super().__init__(broker_coordinates, **properties)


class KafkaKey(Identity):
    """Identity from the broker's key, for topics whose key is unique per message.

    Do not use it where the key names an aggregate, such as an order or a customer: its second event
    would be dropped as a duplicate.
    """

    def __init__(self, **properties: Any) -> None:
        super().__init__(broker_key, **properties)


class Debezium(Identity):
    """Identity from the headers of Debezium's outbox event router: `id` and `eventType`.

    `eventType` is a header only if the connector is configured so. The record's key names the
    aggregate. The wrapper of Kafka Connect's JSON converter is removed from key and payload.
    """

    select = staticmethod(header)

    def __init__(
        self,
        *,
        origin: str | Selector | None = None,
        type: str | Selector | None = "eventType",
        version: str | Selector | None = None,
        key: Key | None = None,
        key_per_origin: bool = False,
        time: str | Selector | None = None,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
    ) -> None:
        super().__init__(
            "id",
            origin=origin,
            type=type,
            version=version,
            key=key or _connect_key,
            key_per_origin=key_per_origin,
            time=time,
            sequence=sequence,
            epoch=epoch,
        )

    def payload(self, envelope: Envelope) -> bytes:
        return unwrapped(envelope.delivery.body)


def _connect_key(envelope: Envelope) -> Any:
    key = envelope.delivery.key
    return utf8(unwrapped(key.encode() if isinstance(key, str) else key), "key") if key else None


class CustomIdentity:
    """An identity that the user wrote as a function; its messages are validated."""

    def __init__(self, rule: Callable[[Delivery], Message]) -> None:
        self._rule = rule

    def __call__(self, delivery: Delivery) -> Message:
        """The message that the function returns. Raises MissingId, and nothing else."""
        return identified(lambda arrived: valid_message(self._rule(arrived)), delivery)

    @property
    def is_sequenced(self) -> bool:
        return bool(getattr(self._rule, "is_sequenced", True))


def checked_identity(identity: Any) -> Identity | CustomIdentity:
    """The identity of an inbox; CloudEvents by default. Raises ConfigurationError."""
    if identity is None:
        return CloudEvents()
    if isinstance(identity, type) or not callable(identity):
        raise ConfigurationError(f"identity must be a rule such as CloudEvents(), got {identity!r}")
    return identity if isinstance(identity, Identity) else CustomIdentity(identity)
