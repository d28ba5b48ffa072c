"""Validates messages that the user builds: by a custom identity, or for claim()."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from oncebox.errors import ClaimError, MissingId
from oncebox.model.identity.validation import (
    in_utc,
    name,
    sequence_number,
    time_in_id,
    type_name,
    version_number,
)
from oncebox.model.message import NO_HEADERS, Message, RawHeaders, content_hash, text_headers


def valid_message(message: Any) -> Message:
    """A message that the user built, with validated values. Raises MissingId."""
    if not isinstance(message, Message):
        raise MissingId(f"the identity must return a Message, got {type(message).__qualname__}")
    if not isinstance(message.payload, bytes):
        raise MissingId(f"the payload must be bytes, got {type(message.payload).__qualname__}")
    if not isinstance(message.content_hash, bytes | None):
        raise MissingId("content_hash must be bytes or None")
    return msgspec.structs.replace(
        message,
        id=name(message.id, "id"),
        origin=name(message.origin, "origin"),
        type=type_name(message.type),
        version=version_number(message.version),
        key=None if message.key is None else name(message.key, "key"),
        headers=text_headers(message.headers),
        occurred_at=in_utc(message.occurred_at),
        produced_at=in_utc(message.produced_at),
        sequence=None if message.sequence is None else sequence_number(message.sequence),
        epoch=name(message.epoch, "epoch") if message.epoch else "",
    )


def checked_message(
    id: str | UUID,
    *,
    origin: str = "default",
    type: str = "",
    version: int = 1,
    key: str | None = None,
    payload: bytes | None = None,
    headers: RawHeaders = NO_HEADERS,
    produced_at: datetime | None = None,
) -> Message:
    """The message of a claim(). Raises MissingId if a value is not valid."""
    id = _given(id, "id")
    content = _bytes_of(payload)
    return Message(
        id=id,
        payload=content or b"",
        origin=_given(origin, "origin"),
        type=type_name(type),
        version=version_number(version),
        key=None if key is None else name(key, "key"),
        headers=text_headers(headers),
        produced_at=time_in_id(id) or in_utc(produced_at),
        content_hash=None if content is None else content_hash(content),
    )


def _given(value: Any, what: str) -> str:
    """As name(), for an argument of claim(): no identity has looked for it in the delivery."""
    if value is None or value == "":
        raise MissingId(f"the {what} is empty: pass the one that the producer gave the message")
    return name(value, what)


def _bytes_of(payload: Any) -> bytes | None:
    if payload is None or type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise ClaimError(
        f"payload must be bytes, got {type(payload).__qualname__}: pass the bytes that arrived, or "
        "a canonical encoding (equal payloads, equal bytes). Leave it out to compare nothing"
    )
