"""Conversion of Kafka records to deliveries. A record that cannot be converted is quarantined.

`Message.headers()` of confluent-kafka returns a broken list, with an exception set, if the name of
a header is not UTF-8. The interpreter detects that only until it has specialised the call. After
that, reading the list crashes the process. The interpreter always checks a call from C, so this
module calls the method with `operator.methodcaller`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import TYPE_CHECKING

from oncebox.model.message import NO_HEADERS, TOMBSTONE, Delivery, RawHeaders

if TYPE_CHECKING:
    from confluent_kafka import Message

    from oncebox.brokers.kafka.partition import Partition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CRASHING = "the process crashed each time this record was converted; its headers were not read"

_headers_of = methodcaller("headers")
"""Call it only once for each record: a second call returns the broken list unchecked."""


def delivery(partition: Partition, message: Message) -> Delivery:
    """Convert a record to a delivery; if that fails, to one with a defect for the quarantine."""
    try:
        return _delivery(partition, message, _headers(message), _timestamp(message))
    except (SystemError, UnicodeError):
        return _delivery(
            partition, message, defect="the name of a header is not UTF-8; no header was read"
        )
    except Exception as error:
        defect = f"the record cannot be converted: {type(error).__name__}"
        return _delivery(partition, message, defect=defect)


def crashing(partition: Partition, message: Message) -> Delivery:
    """Convert a record that crashed the process: only the fields that are safe to read."""
    return _delivery(partition, message, defect=CRASHING)


def _delivery(
    partition: Partition,
    message: Message,
    headers: RawHeaders = NO_HEADERS,
    timestamp: datetime | None = None,
    defect: str | None = None,
) -> Delivery:
    value = message.value()
    return Delivery(
        body=TOMBSTONE if value is None else value,
        headers=headers,
        key=message.key(),
        source=partition.topic,
        coordinates=f"{partition.coordinates_prefix}{partition.partition}/{message.offset()}",
        timestamp=timestamp,
        defect=defect,
    )


def _headers(message: Message) -> RawHeaders:
    headers = _headers_of(message)
    return dict(headers) if headers else NO_HEADERS


def _timestamp(message: Message) -> datetime | None:
    """Return the broker's timestamp; None if it is invalid."""
    kind, milliseconds = message.timestamp()
    try:
        return EPOCH + timedelta(milliseconds=milliseconds) if kind else None
    except OverflowError:
        return None
