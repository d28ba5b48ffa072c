"""Message: what a producer sent. Delivery: one arrival of a message from a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from oncebox.errors import OnceboxError

RawHeaders = Mapping[str, object]
"""Headers as the client of a broker returns them: text, bytes, numbers, lists, objects."""

HeaderMap = Mapping[str, str | None]
"""Headers as handlers get them and as they are stored: text."""

NO_HEADERS: Mapping[str, Any] = {}

TOMBSTONE = b"null"
"""Replaces the body None (a Kafka tombstone): handlers whose payload may be None get None."""


class Delivery(msgspec.Struct, frozen=True):
    """One arrival of a message from a source."""

    body: bytes
    headers: RawHeaders = NO_HEADERS
    """As the client of the broker returns them. Message.headers has them as text."""
    key: str | bytes | None = None
    source: str = "default"
    """The queue, topic or endpoint."""
    coordinates: str | None = None
    """Its place in the source, unique there: "3/10427" for partition and offset."""
    timestamp: datetime | None = None
    """The broker's time."""
    redelivered: bool = False
    """True if the broker delivered it before. That delivery may have crashed its process. So a new
    message is stored, and a worker runs it isolated. A duplicate does not run."""
    receipt: Any = None
    """What the caller needs to ack this delivery; oncebox does not read it."""
    defect: str | None = None
    """Why the source could not convert all of it. Such a delivery is quarantined and never runs."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer sent."""

    id: str
    payload: bytes
    origin: str = "default"
    """The producer of the id; ids are unique within their origin."""
    type: str = ""
    version: int = 1
    """The version of the payload; 0 if the producer's version is not a number."""
    key: str | None = None
    """Messages with the same key run in order: the id of an order, an account, ..."""
    headers: HeaderMap = NO_HEADERS
    occurred_at: datetime | None = None
    produced_at: datetime | None = None
    """When the producer created the message or its id, if known. Retention relies on it."""
    content_hash: bytes | None = None
    """Detects the same id with another payload; None if payloads are not compared."""
    sequence: int | None = None
    """Its sequence number within the key: it waits for lower numbers. Known only on arrival. It is
    unrelated to seq, the number of its arrival."""
    epoch: str = ""
    """Separates two sequences of a key, if the producer restarts its sequence numbers."""
    replay: int = 0
    """The id of the replay that runs it again; 0 if no replay runs it."""


def content_hash(payload: bytes) -> bytes:
    """A hash of 16 bytes, for comparing two payloads."""
    return blake2b(payload, digest_size=16).digest()


def headers_json(headers: HeaderMap) -> str | None:
    """The headers of a message as JSON, for storing."""
    return msgspec.json.encode(headers).decode() if headers else None


def headers_of(json: str | None) -> HeaderMap:
    """The headers that headers_json() wrote."""
    return msgspec.json.decode(json, type=dict[str, str | None]) if json else NO_HEADERS


def text_headers(headers: Mapping[Any, Any]) -> HeaderMap:
    """The headers of a delivery as text. Never raises."""
    if not headers:
        return NO_HEADERS
    return {text_of(name) or "": text_of(value) for name, value in headers.items()}


def text_of(value: Any) -> str | None:
    """A value as text that every database stores; None stays None. Never raises.

    Bytes are decoded as UTF-8, and bytes that are not UTF-8 are escaped. Numbers, lists and objects
    become JSON; objects that JSON cannot represent become their str().
    """
    if type(value) is str and value.isascii() and "\0" not in value:
        return value  # the usual case
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return escaped(str.__str__(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("utf-8", "backslashreplace").replace("\0", "\\0")
        return _json_or_str(value)
    except Exception:  # str() failed
        return f"<{type(value).__qualname__}>"


def _json_or_str(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except Exception:
        return escaped(str(value))


def escaped(text: str) -> str:
    """Text that every database stores: lone surrogates and NUL characters become escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def checked_deliveries(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """The deliveries as a list, with values that every database can store.

    Raises OnceboxError for wrong types, which are errors of the caller, and never for content.
    """
    if isinstance(deliveries, Delivery | str | bytes):
        raise OnceboxError("pass a list of deliveries: process([delivery])")
    return [d if _is_valid(d) else _converted(d) for d in deliveries]


def _is_valid(delivery: Any) -> bool:
    return (
        isinstance(delivery, Delivery)
        and type(delivery.body) is bytes
        and isinstance(delivery.headers, Mapping)
        and _is_storable(delivery.source)
        and (delivery.coordinates is None or _is_storable(delivery.coordinates))
        and (delivery.timestamp is None or isinstance(delivery.timestamp, datetime))
        and isinstance(delivery.redelivered, bool)
    )


def _is_storable(text: Any) -> bool:
    return type(text) is str and text.isascii() and "\0" not in text


def _converted(delivery: Any) -> Delivery:
    """A delivery with replacements for values that are missing or cannot be stored."""
    if not isinstance(delivery, Delivery):
        raise OnceboxError(
            f"pass a list of Delivery, got {type(delivery).__qualname__}: wrap the body in "
            "Delivery(body)"
        )
    body: Any = delivery.body
    changes: dict[str, Any] = {}
    if body is None:
        changes["body"] = TOMBSTONE
    elif isinstance(body, bytes | bytearray | memoryview):
        changes["body"] = bytes(body)
    if delivery.headers is None:
        changes["headers"] = NO_HEADERS
    for name in ("source", "coordinates"):
        if isinstance(value := getattr(delivery, name), str):
            changes[name] = escaped(value)
    converted = msgspec.structs.replace(delivery, **changes)
    _check_types(converted)
    return converted


def _check_types(delivery: Delivery) -> None:
    """Raise OnceboxError if a field has a wrong type."""
    for name, kind, text in (
        ("body", bytes, "must be bytes, got {}; encode it first"),
        ("headers", Mapping, "must be a mapping, got {}; pass dict(headers)"),
        ("source", str, "must be a str, got {}; pass the name of the topic or queue"),
        ("coordinates", str | None, 'must be a str, got {}; pass a text such as "3/10427"'),
        ("timestamp", datetime | None, "must be a datetime, got {}"),
        ("redelivered", bool, "must be a bool, got {}"),
    ):
        value = getattr(delivery, name)
        if not isinstance(value, kind):
            raise OnceboxError(f"Delivery.{name} {text.format(type(value).__qualname__)}")
