"""Decoding: from the bytes of a payload to the type in a handler's annotation."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import msgspec
import msgspec.inspect

from oncebox.errors import HandlerError, Undecodable
from oncebox.model.message import Message


class Shape(msgspec.Struct, frozen=True):
    """How a payload is decoded for one handler."""

    decode: Callable[[bytes], Any] | None
    """Decodes the bytes; None if the handler takes the whole message."""
    convert: Callable[[Any], Any]
    """Converts plain JSON values, after an upcaster."""


def shape_of(annotation: Any) -> Shape:
    """The shape for an annotation: Message, bytes, dict, dataclass, msgspec or pydantic type."""
    if annotation is Message:
        return Shape(decode=None, convert=_no_upcast)
    if annotation is bytes:
        return Shape(decode=lambda payload: payload, convert=_no_upcast)
    if _mentions_pydantic(annotation):
        return _pydantic(annotation)
    try:
        _check_is_decodable(msgspec.inspect.type_info(annotation))
        decoder = msgspec.json.Decoder(annotation)
    except TypeError as error:
        raise HandlerError(f"a payload cannot be decoded into {annotation!r}: {error}") from error
    return Shape(
        decode=_guarded(decoder.decode),
        convert=_guarded(lambda value: msgspec.convert(value, annotation)),
    )


def plain(message: Message) -> Any:
    """The payload as plain JSON values."""
    assert _PLAIN.decode is not None
    return _PLAIN.decode(message.payload)


def _mentions_pydantic(annotation: Any) -> bool:
    if hasattr(annotation, "model_validate_json"):  # without importing it
        return True
    return any(_mentions_pydantic(argument) for argument in typing.get_args(annotation))


def _pydantic(annotation: Any) -> Shape:
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(annotation)
    return Shape(
        decode=_guarded(adapter.validate_json),
        convert=_guarded(adapter.validate_python),
    )


def _check_is_decodable(info: Any) -> None:
    """Raise TypeError for a class that msgspec accepts here and rejects at the first message."""
    if isinstance(info, msgspec.inspect.CustomType):
        raise TypeError(f"{info.cls!r} is not a dataclass, TypedDict, msgspec or pydantic type")
    for name in ("item_type", "value_type", "key_type"):
        if hasattr(info, name):
            _check_is_decodable(getattr(info, name))


def _guarded(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def guarded(value: Any) -> Any:
        try:
            return decode(value)
        # A type's own checks may raise anything. The text may quote the input, hence the limit.
        except Exception as error:
            raise Undecodable(f"{type(error).__name__}: {str(error)[:500]}") from error

    return guarded


def _no_upcast(value: Any) -> Any:
    raise Undecodable("an upcaster needs a handler that takes decoded values, not Message or bytes")


_PLAIN = shape_of(Any)
