"""event(): builds a delivery from which the identity of an inbox reads the values of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import uuid4

import msgspec

from oncebox.errors import ConfigurationError, MissingId
from oncebox.inbox import Inbox
from oncebox.model.identity.rules import (
    CloudEvents,
    CustomIdentity,
    Debezium,
    Identity,
    checked_identity,
)
from oncebox.model.message import Delivery, Message
from oncebox.testing.draft import Draft, encoded
from oncebox.testing.probe import BODY, KEY, Place, places_read

STRUCTURED = {"content-type": "application/cloudevents+json"}
SPEC_VERSION = "1.0"


class Arrival(TypedDict, total=False):
    """What the source adds to a message: fields of Delivery."""

    source: str
    coordinates: str
    timestamp: datetime
    redelivered: bool
    receipt: Any


def event(
    inbox: Inbox | Identity | Callable[[Delivery], Message],
    type: str = "",
    data: Any = None,
    *,
    id: object = None,
    key: object = None,
    origin: str | None = None,
    version: int | None = None,
    time: datetime | None = None,
    sequence: int | None = None,
    epoch: str | None = None,
    headers: Mapping[str, Any] | None = None,
    binary: bool = False,
    **arrival: Unpack[Arrival],
) -> Delivery:
    """A delivery for an inbox: its identity reads this type, id, key and so on from it.

    Each value is written where the identity of the inbox reads it: a header, a field of the JSON
    body, the broker's key or the coordinates. `data` is what the handler gets: an object that
    becomes JSON, or bytes. A value that you do not pass may be in the data, if the identity reads
    fields of the data. Without any id, a random one is written. Pass an id or key of several fields
    as a tuple. `binary` writes the attributes of a CloudEvent as headers. Raises ConfigurationError
    if the identity would read something else.
    """
    rule = _identity_of(inbox)
    values = {
        "type": type or None, "id": id, "key": key, "origin": origin, "version": version,
        "time": time, "sequence": sequence, "epoch": epoch,
    }  # fmt: skip
    asked = {name: value for name, value in values.items() if value is not None}
    request = _Request(asked, data, headers or {}, "ce_" if binary else "", dict(arrival))
    if isinstance(rule, CustomIdentity):
        return _for_function(rule, request)
    return _checked(rule, _write(rule, request), asked)


class _Request(msgspec.Struct, frozen=True):
    """What a test asks for."""

    asked: dict[str, Any]
    data: Any
    headers: Mapping[str, Any]
    prefix: str
    """The prefix of the headers of a CloudEvent in binary mode; empty in structured mode."""
    arrival: dict[str, Any]


def _identity_of(inbox: Any) -> Identity | CustomIdentity:
    if isinstance(inbox, str):
        raise ConfigurationError(
            f'event() takes your inbox or its identity first: event(inbox, "{inbox}", ...)'
        )
    if isinstance(inbox, Inbox):
        return inbox.identity
    return inbox if isinstance(inbox, CustomIdentity) else checked_identity(inbox)


def _write(rule: Identity, request: _Request) -> Delivery:
    """Write all values where the rule reads them."""
    prefix = request.prefix if isinstance(rule, CloudEvents) else ""
    places = {name: places_read(read, prefix) for name, read in rule.selectors.items()}
    places["id"] = [place for place in places["id"] if place not in places["type"]] or places["id"]
    draft = Draft(_wrapped(rule, request.data), _data_place(rule, prefix), request.headers)
    if isinstance(rule, CloudEvents):
        _write_envelope(draft, prefix)
    for name, value in request.asked.items():
        if name == "time" and not places[name]:
            request.arrival.setdefault("timestamp", value)  # the identity uses the broker's time
        else:
            _put(draft, name, places[name], value)
    _fill(draft, places["id"], lambda: str(uuid4()))
    _fill(draft, places["origin"], lambda: "test")
    return _with_broker_key(rule, draft, request.arrival)


def _wrapped(rule: Identity, data: Any) -> Any:
    """Kafka Connect writes a text as a JSON string, which Debezium's identity removes."""
    is_text = isinstance(rule, Debezium) and isinstance(data, str)
    return encoded(encoded(data).decode()) if is_text else data


def _data_place(rule: Identity, prefix: str) -> Place:
    """Where the payload of the handler is: the body, or a field of it."""
    read = places_read(rule.payload, prefix)
    return read[0] if read and read[0].kind == "field" else BODY


def _write_envelope(draft: Draft, prefix: str) -> None:
    if prefix:
        draft.write(Place("header", (f"{prefix}specversion",)), SPEC_VERSION)
    else:
        draft.write(Place("field", ("specversion",)), SPEC_VERSION)
        draft.headers = {**STRUCTURED, **draft.headers}


def _put(draft: Draft, name: str, places: list[Place], value: Any) -> None:
    """Write a value to its place; the parts of a tuple to one place each."""
    parts = list(value) if isinstance(value, tuple) else [value]
    if len(parts) == 1 and KEY in places:
        places = [KEY]
    if len(places) != len(parts):
        read = ", ".join(map(str, places)) or "nothing"
        raise ConfigurationError(
            f"{name}={value!r} does not fit: the identity reads {read}. Put the values into the "
            "data or the headers, or pass a tuple with a value for each place"
        )
    for place, part in zip(places, parts, strict=True):
        draft.write(place, part.isoformat() if isinstance(part, datetime) else part)


def _fill(draft: Draft, places: list[Place], make: Callable[[], str]) -> None:
    """Write a value to each place that has none."""
    for place in places:
        if place is not BODY and not draft.has(place):
            draft.write(place, make())


def _with_broker_key(rule: Identity, draft: Draft, arrival: dict[str, Any]) -> Delivery:
    """The delivery. If it has no key of the broker, it gets that of the message, as on Kafka."""
    delivery = draft.delivery(arrival)
    if delivery.key is None:
        try:
            draft.key = rule(delivery).key
        except MissingId:
            return delivery  # _checked() says why
    return draft.delivery(arrival)


def _for_function(rule: CustomIdentity, request: _Request) -> Delivery:
    """A delivery for an identity that is a function: the data alone, or a CloudEvent."""
    plain = Draft(request.data, BODY, request.headers)
    plain.key = request.asked.get("key")
    try:
        return _checked(rule, plain.delivery(request.arrival), request.asked)
    except ConfigurationError as error:
        try:
            return _checked(rule, _write(CloudEvents(), request), request.asked)
        except ConfigurationError:
            raise ConfigurationError(
                f"{error}. The identity is a function: pass data and headers in which it finds "
                "everything, or build a Delivery"
            ) from error


def _checked(
    rule: Identity | CustomIdentity, delivery: Delivery, asked: dict[str, Any]
) -> Delivery:
    """The delivery, after the identity has read it. Raises ConfigurationError."""
    try:
        message = rule(delivery)
    except MissingId as error:
        raise ConfigurationError(f"the identity cannot read this event: {error}") from error
    for name in asked.keys() - {"time"}:
        found = getattr(message, name)
        if not _fits(found, asked[name]):
            raise ConfigurationError(f"{name}={asked[name]!r}, but the identity reads {found!r}")
    return delivery


def _fits(found: Any, asked: Any) -> bool:
    """Whether a value is what was asked for, or a JSON array that ends with it."""
    if str(found) == str(asked):
        return True
    parts = [str(part) for part in (asked if isinstance(asked, tuple) else [asked])]
    try:
        values = msgspec.json.decode(str(found), type=list[str])
    except msgspec.DecodeError:
        return False
    return values[-len(parts) :] == parts
