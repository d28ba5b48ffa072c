"""Identity: the rule that turns a delivery into a message's id, origin, type, version and key.

An identity is made of selectors, one per property. It also says what "the same bytes" means for
its ids, and where `minted_at` comes from: the time inside a UUIDv7 or ULID, else the selected time,
else the broker's. A missing, empty or oversized id is never guessed: `Unidentified` is raised and
the delivery is quarantined with its bytes.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from oncebox.errors import ConfigurationError, Unidentified
from oncebox.message import NO_HEADERS, Delivery, Message, content_hash
from oncebox.message import Headers as Headers_

LIMIT: Final = 255
"""Bytes of an id, origin or key: longer ones overflow a page of a database index."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Envelope:
    """A delivery whose headers and JSON fields are looked up by name, parsed when asked for."""

    __slots__ = ("_fields", "delivery")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._fields: dict[str, msgspec.Raw] | None = None

    def header(self, name: str) -> str | None:
        """A header's text, by its name in any case."""
        headers = self.delivery.headers
        value = headers.get(name)
        if value is None:
            wanted = name.lower()
            value = next((v for k, v in headers.items() if k.lower() == wanted), None)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise Unidentified(f"header {name!r} is not UTF-8") from error
        return value

    def raw(self, path: str) -> bytes | None:
        """The bytes of a JSON field, exactly as the producer wrote them."""
        if self._fields is None:
            self._fields = _parse(_object.decode, self.delivery.body)
        head, *rest = path.split(".")
        value = self._fields.get(head)
        for name in rest:
            if value is None or bytes(value) == b"null":
                return None
            value = _parse(_object.decode, value).get(name)
        return None if value is None else bytes(value)

    def field(self, path: str) -> Any:
        """The value of a JSON field; `a.b` is the field b of the object a."""
        raw = self.raw(path)
        return None if raw is None else _parse(msgspec.json.decode, raw)


def _parse(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unidentified(
            f"the body is not a JSON object with readable fields: {error}"
        ) from error


Selector = Callable[[Envelope], Any]


def header(name: str) -> Selector:
    """Select a header."""
    return lambda envelope: envelope.header(name)


def field(path: str) -> Selector:
    """Select a field of the JSON body; `a.b` is the field b of the object a."""
    return lambda envelope: envelope.field(path)


def constant(value: str | int) -> Selector:
    """Select the same value for every delivery."""
    return lambda envelope: value


def broker_key(envelope: Envelope) -> Any:
    """Select the key that the broker carries beside the body."""
    key = envelope.delivery.key
    return _utf8(key, "key") if isinstance(key, bytes) else key


def broker_coordinates(envelope: Envelope) -> Any:
    """Select source and coordinates: the place of the message in its topic, queue or file."""
    delivery = envelope.delivery
    if delivery.coordinates is None:
        return None
    return _together([delivery.source, delivery.coordinates])


def attribute(name: str) -> Selector:
    """Select a CloudEvents attribute, from the headers (binary mode) or the body (structured)."""
    names = [f"{prefix}{name}" for prefix in ("ce-", "ce_", "cloudEvents:", "cloudEvents_")]

    def select(envelope: Envelope) -> Any:
        if not _is_binary(envelope):
            return envelope.field(name)
        found = next(((n, v) for n in names if (v := envelope.header(n)) is not None), None)
        if found is None:
            return None
        return unquote(found[1]) if found[0].startswith("ce-") else found[1]  # HTTP encodes

    return select


def _is_binary(envelope: Envelope) -> bool:
    headers = envelope.delivery.headers
    if not headers:
        return False
    content_type = envelope.header("content-type") or ""
    if content_type.lower().startswith("application/cloudevents"):
        return False
    return any(name.lower() in _BINARY_IDS for name in headers)


_BINARY_IDS = ("ce-id", "ce_id", "cloudevents:id", "cloudevents_id")


def _cloud_event_data(envelope: Envelope) -> bytes:
    if _is_binary(envelope):
        return envelope.delivery.body
    data = envelope.raw("data")
    if data is not None:
        return data
    encoded = envelope.field("data_base64")
    if encoded is None:
        return b""
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise Unidentified(f"data_base64 cannot be decoded: {error}") from error


class Identity:
    """An identity put together from selectors, for what the named identities do not cover.

    A property given as text is looked up by `select`. Where `key` is not given, the broker's key
    names the aggregate. `payload` names the JSON field that handlers get; without it, the body.
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
        payload: str | None = None,
        compare: bool = True,
    ) -> None:
        self._id = self._selector(id)
        self._origin = self._selector(origin or constant("default"))
        self._type = self._selector(type or constant(""))
        self._version = self._selector(version or constant(1))
        self._key = self._selector(key or constant_none)
        self._time = self._selector(time or constant_none)
        self._payload = payload
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
        except Exception as error:  # of a selector that the user wrote
            raise Unidentified(f"{type(error).__name__}: {error}") from error

    def _identify(self, delivery: Delivery) -> Message:
        envelope = Envelope(delivery)
        id_ = _name(self._id(envelope), "id")
        payload = self.payload(envelope)
        occurred_at = _time(self._time(envelope))
        key = self._key(envelope)
        return Message(
            id=id_,
            payload=payload,
            origin=_name(self._origin(envelope), "origin"),
            type=_type(self._type(envelope)),
            version=_version(self._version(envelope)),
            key=None if key is None or key == "" else _name(key, "key"),
            headers=delivery.headers,
            occurred_at=occurred_at,
            minted_at=_time_in_id(id_) or occurred_at or _in_utc(delivery.timestamp),
            content_hash=content_hash(payload) if self.compare else None,
        )

    def payload(self, envelope: Envelope) -> bytes:
        """The bytes that the handler gets, and that are compared."""
        if self._payload is None:
            return envelope.delivery.body
        return envelope.raw(self._payload) or b""


def constant_none(envelope: Envelope) -> None:
    """Select nothing."""
    return


class Json(Identity):
    """Identity from fields of a JSON body: `Json(id="event_id", type="type", key="order.id")`."""


class Headers(Identity):
    """Identity from headers: `Headers(id="message-id", type="event-type")`."""

    select = staticmethod(header)


class CloudEvents(Identity):
    """Identity from CloudEvents, binary or structured; compared is the event's data."""

    select = staticmethod(attribute)

    def __init__(
        self, *, version: str | Selector | None = None, key: str | Selector | None = None
    ) -> None:
        partition = self._selector(key or "partitionkey")
        super().__init__(
            "id",
            origin="source",
            type="type",
            version=version,
            key=lambda envelope: _first(partition(envelope), broker_key(envelope)),
            time="time",
        )

    def payload(self, envelope: Envelope) -> bytes:
        return _cloud_event_data(envelope)


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
            payload=payload,
            compare=False,
        )

    def _compose(self, envelope: Envelope) -> str:
        parts = [_name(part(envelope), "business key") for part in self._parts]
        return parts[0] if len(parts) == 1 else _together(parts)


def _together(parts: list[str]) -> str:
    """One text of several: as a JSON array, ("a/b", "c") and ("a", "b/c") stay apart."""
    return msgspec.json.encode(parts).decode()


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


def checked_message(
    id: str,
    *,
    origin: str = "default",
    type: str = "",
    version: int = 1,
    key: str | None = None,
    payload: bytes | None = None,
    headers: Headers_ = NO_HEADERS,
    minted_at: datetime | None = None,
) -> Message:
    """A message whose identity the caller knows. Raises Unidentified for one that cannot be."""
    id = _name(id, "id")
    return Message(
        id=id,
        payload=payload or b"",
        origin=_name(origin, "origin"),
        type=_type(type),
        version=_version(version),
        key=None if key is None else _name(key, "key"),
        headers=headers,
        minted_at=_time_in_id(id) or minted_at,
        content_hash=None if payload is None else content_hash(payload),
    )


def _name(value: Any, what: str) -> str:
    """A value that may be an id, origin or key: 1 to 255 bytes that every database stores."""
    if value is None or value == "":
        raise Unidentified(f"the {what} is missing or empty")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unidentified(f"the {what} is neither text nor an integer")
    text = _storable(value if isinstance(value, str) else _digits(value), what)
    if len(text) > LIMIT or len(text.encode()) > LIMIT:
        raise Unidentified(f"the {what} is longer than {LIMIT} bytes")
    return text


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError as error:  # Python refuses to print integers of more than 4300 digits
        raise Unidentified(f"a number of the identity is longer than {LIMIT} digits") from error


def _storable(text: str, what: str) -> str:
    """No database stores lone surrogates; PostgreSQL stores no NUL."""
    if "\0" in text:
        raise Unidentified(f"the {what} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unidentified(f"the {what} is not valid Unicode") from error
    return text


def _utf8(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Unidentified(f"the {what} is not UTF-8") from error


def _type(value: Any) -> str:
    """A type; where there is none the message is a dead letter, not a quarantined one."""
    text = _storable(value, "type") if isinstance(value, str) else ""
    return text if len(text) <= LIMIT else text[:LIMIT] + "..."


def _version(value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, bool):
        return 0
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 10 else 0
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def _time(value: Any) -> datetime | None:
    """An instant from RFC 3339 text or a count of (milli)seconds; None if unreadable."""
    try:
        if isinstance(value, str):
            return _in_utc(msgspec.convert(value, datetime))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (msgspec.ValidationError, ValueError, OverflowError, OSError):
        pass
    return None


def _in_utc(time: datetime | None) -> datetime | None:
    """The same instant in UTC, which a time without a zone is taken to be in already."""
    if time is None or time.tzinfo is None:
        return time and time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:  # the edges of the calendar
        return None


_UUID7: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_ULID: Final = re.compile(r"(?=.*[A-Z])[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE)
_CROCKFORD: Final = {c: i for i, c in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_PLAUSIBLE: Final = range(1_262_304_000_000, 4_102_444_800_000)  # the years 2010 to 2099


def _time_in_id(id_: str) -> datetime | None:
    """The time inside a UUIDv7 or ULID."""
    milliseconds = 0
    if len(id_) == 36 and (match := _UUID7.fullmatch(id_)):
        milliseconds = int(match[1] + match[2], 16)
    elif len(id_) == 26 and _ULID.fullmatch(id_):
        for character in id_[:10].upper():
            milliseconds = milliseconds * 32 + _CROCKFORD[character]
    if milliseconds not in _PLAUSIBLE:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
