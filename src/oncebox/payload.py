"""Payloads: from raw bytes to what a handler's annotation asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from oncebox.errors import HandlerError, Undecodable
from oncebox.message import Message


class Shape(msgspec.Struct, frozen=True):
    """How a payload becomes what the handler takes."""

    decode: Callable[[Message], Any]
    """From the raw message."""
    convert: Callable[[Any], Any]
    """From plain JSON values, after an upcaster."""


def shape_of(annotation: Any) -> Shape:
    """What an annotation asks for: Message, bytes, dict, dataclass, msgspec or pydantic type."""
    if annotation is Message:
        return Shape(decode=lambda message: message, convert=_no_upcast)
    if annotation is bytes:
        return Shape(decode=lambda message: message.payload, convert=_no_upcast)
    if hasattr(annotation, "model_validate_json"):  # pydantic, without importing it
        return _pydantic(annotation)
    try:
        decoder = msgspec.json.Decoder(annotation)
    except TypeError as error:
        raise HandlerError(f"a payload cannot be decoded into {annotation!r}: {error}") from error
    return Shape(
        decode=_guarded(lambda message: decoder.decode(message.payload)),
        convert=_guarded(lambda value: msgspec.convert(value, annotation)),
    )


def plain(message: Message) -> Any:
    """The payload as plain JSON values."""
    return _PLAIN.decode(message)


def _pydantic(model: Any) -> Shape:
    return Shape(
        decode=_guarded(lambda message: model.model_validate_json(message.payload)),
        convert=_guarded(model.model_validate),
    )


def _guarded(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def guarded(value: Any) -> Any:
        try:
            return decode(value)
        # pydantic's ValidationError is a ValueError; its text may quote the input, hence the limit.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Undecodable(f"{type(error).__name__}: {str(error)[:500]}") from error

    return guarded


def _no_upcast(value: Any) -> Any:
    raise Undecodable("an upcaster needs a handler that takes decoded values, not Message or bytes")


_PLAIN = shape_of(Any)
