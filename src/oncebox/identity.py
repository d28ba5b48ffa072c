"""Identity: the rule that turns a delivery into a message's id, origin, type, version and key.

An identity is made of selectors, one per property. It also says what "the same bytes" means for
its ids, and where `minted_at` comes from: the time inside a UUIDv7 or ULID, else the selected time,
else the broker's. A missing, empty or oversized id is never guessed: `Unidentified` is raised and
the delivery is quarantined with its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from oncebox.envelope import (
    Envelope,
    Selector,
    attribute,
    broker_coordinates,
    broker_key,
    cloud_event_data,
    constant,
    field,
    header,
    key_of,
    structured_event,
    together,
    unwrapped,
)
from oncebox.errors import ConfigurationError, Unidentified
from oncebox.message import NO_HEADERS, Delivery, HeaderMap, Message, content_hash
from oncebox.properties import (
    in_utc,
    instant,
    name,
    sequence_number,
    time_in_id,
    type_name,
    utf8,
    version_number,
)


class Identity:
    """An identity put together from selectors, for what the named identities do not cover.

    A property given as text is looked up by `select`. Where `key` is not given, the broker's key
    names the aggregate. `payload` names the JSON field that handlers get; without it, the body.
    `sequence` is a number that counts the messages of a key: they run in its order, whatever order
    they arrive in; `epoch` tells one count from the next, where producers begin anew.
    With `compare`, the same id with another payload is quarantined instead of being absorbed.
    """

    select: Callable[[str], Selector] = staticmethod(field)

    def __init__(
        self,
        id: str | Selector,
        *,
        origin: str | Selector | None = None,
        type: str | Selector | None = None,
        version: str | Selector | None = None,
        key: str | Selector | None = broker_key,
        time: str | Selector | None = None,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
        payload: str | None = None,
        compare: bool = True,
    ) -> None:
        self._id = self._selector(id)
        self._origin = self._selector(origin or constant("default"))
        self._type = self._selector(type or constant(""))
        self._version = self._selector(version or constant(1))
        self._key = self._selector(key or constant(None))
        self._time = self._selector(time or constant(None))
        if epoch is not None and sequence is None:
            raise ConfigurationError("an epoch tells counts apart: give a sequence too")
        self._sequence = None if sequence is None else self._selector(sequence)
        self._epoch = self._selector(epoch or constant(""))
        self._payload = payload.split(".") if payload is not None else None
        self.compare = compare

    def _selector(self, wanted: str | Selector) -> Selector:
        if isinstance(wanted, str):
            if not wanted:
                raise ConfigurationError("a field or header of an identity has no name")
            return self.select(wanted)
        if not callable(wanted):
            raise ConfigurationError(f"{wanted!r} selects nothing: give a name or a selector")
        return wanted

    def __call__(self, delivery: Delivery) -> Message:
        """The message that this delivery carries. Raises Unidentified where it has no identity."""
        try:
            return self._identify(delivery)
        except Unidentified:
            raise
        except Exception as error:  # of the decoder, or of a selector that the user wrote
            raise Unidentified(
                f"its identity cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _identify(self, delivery: Delivery) -> Message:
        envelope = Envelope(delivery)
        return self._message(
            delivery,
            id=self._id(envelope),
            origin=self._origin(envelope),
            type=self._type(envelope),
            version=self._version(envelope),
            key=self._key(envelope),
            time=self._time(envelope),
            payload=self.payload(envelope),
            sequence=None if self._sequence is None else self._sequence(envelope),
            epoch=None if self._sequence is None else self._epoch(envelope),
        )

    @property
    def is_sequenced(self) -> bool:
        """Whether messages of a key carry numbers."""
        return self._sequence is not None

    def _message(
        self,
        delivery: Delivery,
        *,
        id: Any,
        origin: Any,
        type: Any,
        version: Any,
        key: Any,
        time: Any,
        payload: bytes,
        sequence: Any = None,
        epoch: Any = None,
    ) -> Message:
        """Check what was selected."""
        id = name(id, "id")
        key = None if key is None or key == "" else name(key, "key")
        is_counted = self._sequence is not None and key is not None
        occurred_at = None if time is None else instant(time)
        return Message(
            id=id,
            payload=payload,
            origin=name(origin, "origin"),
            type=type_name(type),
            version=version_number(version),
            key=key,
            headers=delivery.headers,
            occurred_at=occurred_at,
            minted_at=time_in_id(id) or occurred_at or in_utc(delivery.timestamp),
            content_hash=content_hash(payload) if self.compare else None,
            sequence=sequence_number(sequence) if is_counted else None,
            epoch=name(epoch, "epoch") if is_counted and epoch not in (None, "") else "",
        )

    def payload(self, envelope: Envelope) -> bytes:
        """The bytes that the handler gets, and that are compared."""
        if self._payload is None:
            return envelope.delivery.body
        return bytes(envelope.raw(self._payload) or b"")


class Json(Identity):
    """Identity from fields of a JSON body: `Json(id="event_id", type="type", key="order.id")`."""


class Headers(Identity):
    """Identity from headers: `Headers(id="message-id", type="event-type")`."""

    select = staticmethod(header)


class CloudEvents(Identity):
    """Identity from CloudEvents, binary or structured; compared is the event's data."""

    select = staticmethod(attribute)

    def __init__(
        self,
        *,
        version: str | Selector | None = None,
        key: str | Selector | None = None,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
    ) -> None:
        self._is_plain = version is None and key is None and sequence is None
        partition = self._selector(key or "partitionkey")
        super().__init__(
            "id",
            origin="source",
            type="type",
            version=version,
            key=lambda envelope: _first(partition(envelope), broker_key(envelope)),
            time="time",
            sequence=sequence,
            epoch=epoch,
        )

    def payload(self, envelope: Envelope) -> bytes:
        return cloud_event_data(envelope)

    def _identify(self, delivery: Delivery) -> Message:
        # Structured events without extensions of the user's own are the usual case: all their
        # attributes are read in one go.
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
    """Identity from what the message is about: `BusinessKey("customer_id", "order_number")`.

    Two events with two ids for one order are one message. Duplicates differ by nature (every double
    click has its own time), so their bytes are never compared.
    """

    def __init__(
        self,
        *fields: str | Selector,
        origin: str | Selector | None = None,
        type: str | Selector | None = None,
        version: str | Selector | None = None,
        key: str | Selector | None = broker_key,
        time: str | Selector | None = None,
        sequence: str | Selector | None = None,
        epoch: str | Selector | None = None,
        payload: str | None = None,
    ) -> None:
        if not fields:
            raise ConfigurationError("a business key needs at least one field")
        self._parts = [self._selector(part) for part in fields]
        super().__init__(
            self._compose,
            origin=origin,
            type=type,
            version=version,
            key=key,
            time=time,
            sequence=sequence,
            epoch=epoch,
            payload=payload,
            compare=False,
        )

    def _compose(self, envelope: Envelope) -> str:
        parts = [name(part(envelope), "business key") for part in self._parts]
        return parts[0] if len(parts) == 1 else together(parts)


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None or value == "" else value


class Coordinates(Identity):
    """Identity from the broker's coordinates: one place in the topic, one message."""

    def __init__(self, **properties: Any) -> None:
        super().__init__(broker_coordinates, **properties)


class KafkaKey(Identity):
    """Identity from the broker's key, for topics whose key names the message and not its aggregate.

    On most topics the key names an aggregate, and its second event would be taken for a duplicate.
    """

    def __init__(self, **properties: Any) -> None:
        super().__init__(broker_key, **properties)


class Debezium(Identity):
    """Identity from the headers of Debezium's outbox event router: `id`, and `eventType` if the
    connector puts it there. The record's key names the aggregate.

    What Kafka Connect's JSON converter wraps around key and payload is taken off.
    """

    select = staticmethod(header)

    def __init__(
        self,
        *,
        origin: str | Selector | None = None,
        type: str | Selector | None = "eventType",
        version: str | Selector | None = None,
        key: str | Selector | None = None,
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
            time=time,
            sequence=sequence,
            epoch=epoch,
        )

    def payload(self, envelope: Envelope) -> bytes:
        return unwrapped(envelope.delivery.body)


def _connect_key(envelope: Envelope) -> Any:
    key = envelope.delivery.key
    return utf8(unwrapped(key.encode() if isinstance(key, str) else key), "key") if key else None


def checked_message(
    id: str,
    *,
    origin: str = "default",
    type: str = "",
    version: int = 1,
    key: str | None = None,
    payload: bytes | None = None,
    headers: HeaderMap = NO_HEADERS,
    minted_at: datetime | None = None,
) -> Message:
    """A message whose identity the caller knows. Raises Unidentified for one that cannot be."""
    id = name(id, "id")
    return Message(
        id=id,
        payload=payload or b"",
        origin=name(origin, "origin"),
        type=type_name(type),
        version=version_number(version),
        key=None if key is None else name(key, "key"),
        headers=headers,
        minted_at=time_in_id(id) or in_utc(minted_at),
        content_hash=None if payload is None else content_hash(payload),
    )
