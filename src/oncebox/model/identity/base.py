"""Identity: the rule that reads a message's id, origin, type, version and key from a delivery.

An identity consists of selectors, one per property. It also decides whether payloads of the same id
are compared, and where `produced_at` comes from: the time inside a UUIDv7 or ULID, else the
selected time, else the broker's. A missing, empty or too long id is never guessed: the rule raises
MissingId, and the delivery is quarantined with its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncebox.errors import ConfigurationError, MissingId
from oncebox.model.identity.selectors import (
    Envelope,
    Selector,
    broker_key,
    constant,
    field,
    together,
)
from oncebox.model.identity.validation import (
    in_utc,
    instant,
    name,
    sequence_number,
    time_in_id,
    type_name,
    version_number,
)
from oncebox.model.message import (
    NO_HEADERS,
    Delivery,
    Message,
    content_hash,
    text_headers,
    text_of,
)

Key = str | Selector | tuple[str | Selector, ...] | list[str | Selector]
"""Selects a key: a field, a selector, or several of them."""


class Identity:
    """An identity composed of selectors, for cases that the ready-made identities do not cover.

    A property that is a str names a JSON field, or a header in `Headers`. A property that is a
    function takes the envelope of a delivery and returns the value:
    `id=lambda envelope: envelope.header("x-id")`.
    `id`, `origin`, `type` and `version` select these properties of the message.
    `time` is when the producer created the message: retention uses it, unless the id has a time.
    `key` names the aggregate whose order is kept; the default is the broker's key. Several fields
    are given as a tuple: `key=("tenant", "order")`.
    `key_per_origin`: if True, equal keys of two origins do not wait for each other, and each has
    its own sequence numbers. If False, they are one key.
    `payload` names the JSON field that handlers get; the default is the whole body.
    `sequence` numbers the messages of a key: they run in this order, not in order of arrival.
    `epoch` separates two sequences of a key, if the producer restarts its numbers.
    `compare`: if True, the same id with another payload is quarantined. If False, it is a
    duplicate.
    """

    select: Callable[[str], Selector] = staticmethod(field)

    def __init__(
        self,
        id: str | Selector,
        *,
        origin: str | Selector | None = None,
        type: str | Selector | None = None,
        version: str | Selector | None = None,
        key: Key | None = broker_key,
        key_per_origin: bool = False,
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
        self._key = self._key_selector(key)
        self._key_per_origin = key_per_origin
        self._time = self._selector(time or constant(None))
        if epoch is not None and sequence is None:
            raise ConfigurationError("epoch= needs sequence=: an epoch separates sequence numbers")
        self._sequence = None if sequence is None else self._selector(sequence)
        self._epoch = self._selector(epoch or constant(""))
        self._payload = payload.split(".") if payload is not None else None
        self.compare = compare

    def _selector(self, wanted: str | Selector) -> Selector:
        if isinstance(wanted, str):
            if not wanted:
                raise ConfigurationError("the name of a field or header of the identity is empty")
            return self.select(wanted)
        if not callable(wanted):
            raise ConfigurationError(f"{wanted!r} is not a selector: pass a name or a function")
        return wanted

    def _key_selector(self, key: Key | None) -> Selector:
        """A selector of the key; for a key of several fields it returns a list of their values."""
        if key is None or isinstance(key, str) or callable(key):
            return self._selector(key or constant(None))
        if not isinstance(key, tuple | list) or not key:
            raise ConfigurationError(
                f"key={key!r} is not a selector: pass a field, or a tuple of fields"
            )
        parts = [self._selector(part) for part in key]
        return lambda envelope: [part(envelope) for part in parts]

    def __call__(self, delivery: Delivery) -> Message:
        """The message of this delivery. Raises MissingId if its identity cannot be read."""
        return identified(self._identify, delivery)

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
        """True if messages have sequence numbers."""
        return self._sequence is not None

    @property
    def selectors(self) -> dict[str, Selector]:
        """The function that reads each property, by the name of the property."""
        nothing = constant(None)
        return {
            "id": self._id,
            "origin": self._origin,
            "type": self._type,
            "version": self._version,
            "key": self._key,
            "time": self._time,
            "sequence": self._sequence or nothing,
            "epoch": self._epoch,
        }

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
        """The message with the selected values, after they are validated."""
        id = name(id, "id")
        origin = name(origin, "origin")
        key = None if key is None or key == "" else self._key_text(key, origin)
        is_sequenced = self._sequence is not None and key is not None
        occurred_at = None if time is None else instant(time)
        return Message(
            id=id,
            payload=payload,
            origin=origin,
            type=type_name(type),
            version=version_number(version),
            key=key,
            headers=text_headers(delivery.headers) if delivery.headers else NO_HEADERS,
            occurred_at=occurred_at,
            produced_at=time_in_id(id) or occurred_at or in_utc(delivery.timestamp),
            content_hash=content_hash(payload) if self.compare else None,
            sequence=sequence_number(sequence) if is_sequenced else None,
            epoch=name(epoch, "epoch") if is_sequenced and epoch not in (None, "") else "",
        )

    def _key_text(self, key: Any, origin: str) -> str | None:
        """The key, or None. A key of several fields becomes a JSON array."""
        if not self._key_per_origin and not isinstance(key, list):
            return name(key, "key")
        parts = key if isinstance(key, list) else [key]
        if all(part is None or part == "" for part in parts):
            return None
        scope = [origin] if self._key_per_origin else []
        return name(together(scope + [name(part, "part of the key") for part in parts]), "key")

    def payload(self, envelope: Envelope) -> bytes:
        """The bytes that the handler gets and that are compared."""
        if self._payload is None:
            return envelope.delivery.body
        return bytes(envelope.raw(self._payload) or b"")


def identified(rule: Callable[[Delivery], Message], delivery: Delivery) -> Message:
    """The message that a rule returns. Every error of the rule becomes MissingId."""
    try:
        return rule(delivery)
    except MissingId:
        raise
    except Exception as error:  # from the decoder, or from the user's selector
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise MissingId(f"the identity of the delivery cannot be read: {reason}") from error
