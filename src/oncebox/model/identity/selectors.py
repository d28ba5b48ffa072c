"""Selectors: functions that read one value from the headers or the JSON body of a delivery."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from oncebox.errors import MissingId
from oncebox.model.identity.validation import digits, utf8
from oncebox.model.message import Delivery, text_of

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode


class Envelope:
    """A delivery whose headers and fields are parsed on first use."""

    __slots__ = ("_fields", "_headers", "_mode", "delivery")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._fields: dict[str, msgspec.Raw] | None = None
        self._headers: dict[str, object] | None = None
        self._mode: str | None = None

    def header(self, name: str) -> str | None:
        """The text of a header, by its case-insensitive name. Raises MissingId for other types."""
        if self._headers is None:
            headers = self.delivery.headers.items()
            self._headers = {(text_of(key) or "").lower(): value for key, value in headers}
        value = self._headers.get(name.lower())
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bytes):
            return utf8(value, f"header {name!r}")
        if isinstance(value, int) and not isinstance(value, bool):
            return digits(value)
        raise MissingId(
            f"the header {name!r} must be text or an integer, got {type(value).__qualname__}"
        )

    @property
    def fields(self) -> dict[str, msgspec.Raw]:
        """The fields of the JSON body, exactly as the producer wrote them."""
        if self._fields is None:
            self._fields = _object(self.delivery.body)
        return self._fields

    def raw(self, path: list[str]) -> msgspec.Raw | None:
        """The bytes of a JSON field, at a path into nested objects."""
        value = self.fields.get(path[0])
        for name in path[1:]:
            if value is None or bytes(value) == b"null":
                return None
            value = _object(value).get(name)
        return value

    @property
    def mode(self) -> str:
        """The prefix of CloudEvents headers in binary mode; empty in structured mode."""
        if self._mode is None:
            self._mode = self._find_mode() if self.delivery.headers else ""
        return self._mode

    def _find_mode(self) -> str:
        content_type = self.header("content-type") or ""
        if content_type.lower().startswith("application/cloudevents"):
            return ""
        return next((p for p in _PREFIXES if self.header(f"{p}id") is not None), "")


_PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_")

Selector = Callable[[Envelope], Any]


def header(name: str) -> Selector:
    """Select a header."""
    return lambda envelope: envelope.header(name)


def field(path: str) -> Selector:
    """Select a field of the JSON body; `a.b` is the field b of the object a."""
    names = path.split(".")

    def select(envelope: Envelope) -> Any:
        raw = envelope.raw(names)
        return None if raw is None else _value(raw)

    return select


def constant(value: str | int | None) -> Selector:
    """Select the same value for every delivery."""
    return lambda envelope: value


def broker_key(envelope: Envelope) -> Any:
    """Select the broker's key of the delivery."""
    return key_of(envelope.delivery)


def key_of(delivery: Delivery) -> str | None:
    """The broker's key as text."""
    key = delivery.key
    return utf8(key, "key") if isinstance(key, bytes) else key


def broker_coordinates(envelope: Envelope) -> Any:
    """Select source and coordinates: the place of the delivery in its topic, queue or file."""
    delivery = envelope.delivery
    if delivery.coordinates is None:
        return None
    return together([delivery.source, delivery.coordinates])


def attribute(name: str) -> Selector:
    """Select a CloudEvents attribute, from the headers (binary mode) or the body (structured)."""
    structured = field(name)

    def select(envelope: Envelope) -> Any:
        mode = envelope.mode
        if not mode:
            return structured(envelope)
        value = envelope.header(mode + name)
        # HTTP headers are percent-encoded, those of other protocols are not.
        return unquote(value) if mode == "ce-" and value is not None else value

    return select


class StructuredEvent(msgspec.Struct):
    """The attributes of a CloudEvent that oncebox reads; they are validated later."""

    id: Any = None
    source: Any = None
    type: Any = None
    time: Any = None
    partitionkey: Any = None
    data: msgspec.Raw = msgspec.Raw()


structured_event: Final = msgspec.json.Decoder(StructuredEvent).decode


def cloud_event_data(envelope: Envelope) -> bytes:
    """The data of a CloudEvent, exactly as the producer wrote it."""
    if envelope.mode:
        return envelope.delivery.body
    data = envelope.fields.get("data")
    if data is not None:
        return bytes(data)
    encoded = _value(envelope.fields.get("data_base64") or b"null")
    if encoded is None:
        return b""
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise MissingId(
            f"the data_base64 of the CloudEvent is not valid base64: {error}"
        ) from error


def unwrapped(raw: bytes) -> bytes:
    """Remove the wrapper of Kafka Connect's JSON converter: a schema, or a JSON string."""
    try:
        if raw[:1] == b'"':
            return bytes(_value(raw).encode())
        if raw[:1] == b"{" and (fields := _object(raw)).keys() == {"schema", "payload"}:
            return unwrapped(bytes(fields["payload"]))
    except (msgspec.DecodeError, UnicodeError):
        pass  # not wrapped
    return raw


def together(parts: list[str]) -> str:
    """Join texts as a JSON array, so that ("a/b", "c") and ("a", "b/c") stay different."""
    return msgspec.json.encode(parts).decode()
