"""Message and Delivery: what a producer sent, and one arrival of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from oncebox.errors import OnceboxError

HeaderMap = Mapping[str, str | bytes | None]

NO_HEADERS: HeaderMap = {}


class Delivery(msgspec.Struct, frozen=True):
    """One arrival of a message from a source, as the broker handed it over."""

    body: bytes
    headers: HeaderMap = NO_HEADERS
    key: str | bytes | None = None
    source: str = "default"
    """The queue, topic or endpoint."""
    coordinates: str | None = None
    """Where the broker had it, unique within the source: "3/10427" for partition and offset."""
    timestamp: datetime | None = None
    """The broker's time."""
    redelivered: bool = False
    """Whether the broker says so: a new message that was in somebody's hands before may have killed
    its process, so it is stored, to be run alone."""
    receipt: Any = None
    """Whatever the caller needs to settle this delivery; oncebox does not look at it."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer sent."""

    id: str
    payload: bytes
    origin: str = "default"
    """Who minted the id; ids are unique within it."""
    type: str = ""
    version: int = 1
    """The payload's version; 0 where the producer's version is not a number."""
    key: str | None = None
    """The aggregate whose order is kept."""
    headers: HeaderMap = NO_HEADERS
    occurred_at: datetime | None = None
    minted_at: datetime | None = None
    """When the id came into being, as far as it can be known: retention relies on it."""
    content_hash: bytes | None = None
    """What makes the same id with other bytes visible; None where duplicates differ by nature."""
    sequence: int | None = None
    """Its number within the key, where the producer counts: it waits for the numbers before it.
    Known on arrival only: what was stored has its place, and no number any more."""
    epoch: str = ""
    """What tells one count of a key from the next."""
    replay: int = 0
    """The number of the replay that runs it once more; 0 where it runs because it arrived."""


def content_hash(payload: bytes) -> bytes:
    """The 16 bytes by which two payloads are compared."""
    return blake2b(payload, digest_size=16).digest()


def headers_json(headers: HeaderMap) -> str | None:
    """The headers as JSON text for the audit log; bytes that are no UTF-8 are escaped, not lost."""
    if not headers:
        return None
    return msgspec.json.encode({readable(k): readable(v) for k, v in headers.items()}).decode()


def headers_of(json: str | None) -> HeaderMap:
    """The headers that headers_json() wrote."""
    return msgspec.json.decode(json, type=dict[str, str | None]) if json else NO_HEADERS


def readable(value: str | bytes | None) -> str | None:
    """Text that can be stored; what is no UTF-8 is escaped, not lost."""
    if value is None:
        return None
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def checked_deliveries(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """A list of deliveries that are what they claim to be: a wrong wiring is no bad message."""
    if isinstance(deliveries, Delivery | str | bytes):
        raise OnceboxError("deliveries are given as a list: [delivery]")
    batch = list(deliveries)
    for delivery in batch:
        if not _is_sound(delivery):
            _complain(delivery)
    return batch


def _is_sound(delivery: Any) -> bool:
    return (
        isinstance(delivery, Delivery)
        and isinstance(delivery.body, bytes)
        and isinstance(delivery.headers, Mapping)
        and isinstance(delivery.source, str)
        and (delivery.coordinates is None or isinstance(delivery.coordinates, str))
        and (delivery.timestamp is None or isinstance(delivery.timestamp, datetime))
        and isinstance(delivery.redelivered, bool)
    )


def _complain(delivery: Any) -> None:
    if not isinstance(delivery, Delivery):
        raise OnceboxError(
            f"a list of deliveries is expected, not of {type(delivery).__qualname__}: "
            "wrap the body as Delivery(body)"
        )
    for name, kind, remedy in (
        ("body", bytes, "encode text, and give b'' for none"),
        ("headers", Mapping, "give dict(headers)"),
        ("source", str, "name the topic or queue"),
        ("coordinates", str | None, 'such as "3/10427"'),
        ("timestamp", datetime | None, "give a datetime"),
        ("redelivered", bool, "give True or False"),
    ):
        value = getattr(delivery, name)
        if not isinstance(value, kind):
            raise OnceboxError(
                f"the {name} of a delivery is no {type(value).__qualname__}: {remedy}"
            )
