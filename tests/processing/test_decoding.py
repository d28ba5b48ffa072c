"""From raw bytes to what a handler's annotation asks for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.errors import HandlerError, Undecodable
from oncebox.model.message import Message
from oncebox.processing.decoding import plain, shape_of


@dataclass
class Order:
    id: str
    total: int


class StructOrder(msgspec.Struct):
    id: str
    total: int


class DictOrder(TypedDict):
    id: str
    total: int


class ModelOrder(pydantic.BaseModel):
    id: str
    total: int


@dataclass
class Parcel:
    """Its own check fails with something else than ValueError."""

    lines: dict[str, int]

    def __post_init__(self) -> None:
        self.lines["first"]


class ModelParcel(pydantic.BaseModel):
    lines: dict[str, int]

    @pydantic.field_validator("lines")
    @classmethod
    def has_a_first_line(cls, lines: dict[str, int]) -> dict[str, int]:
        return {"first": lines["first"]}


class Plain:
    """A class that says nothing about its fields."""


BODY = b'{"id": "o-1", "total": 5}'
SHAPES = [Any, dict, dict[str, Any], list[int], Order, StructOrder, DictOrder, ModelOrder, str, int]


def message(payload: bytes) -> Message:
    return Message("1", payload)


def decoded(annotation: Any, payload: bytes) -> Any:
    decode = shape_of(annotation).decode
    assert decode is not None
    return decode(payload)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"id": "o-1", "total": 5}),
        (dict, {"id": "o-1", "total": 5}),
        (dict[str, Any], {"id": "o-1", "total": 5}),
        (DictOrder, {"id": "o-1", "total": 5}),
        (Order, Order("o-1", 5)),
        (StructOrder, StructOrder("o-1", 5)),
        (ModelOrder, ModelOrder(id="o-1", total=5)),
        (Order | None, Order("o-1", 5)),
    ],
)
def test_a_payload_becomes_what_the_annotation_says(annotation: Any, value: Any) -> None:
    shape = shape_of(annotation)
    assert decoded(annotation, BODY) == value
    assert shape.convert({"id": "o-1", "total": 5}) == value


def test_a_list_is_decoded_item_by_item() -> None:
    assert decoded(list[Order], b"[" + BODY + b"]") == [Order("o-1", 5)]


def test_message_and_bytes_are_handed_over_undecoded() -> None:
    assert shape_of(Message).decode is None
    assert decoded(bytes, b"\xff") == b"\xff"


@pytest.mark.parametrize("annotation", [Message, bytes])
def test_an_upcaster_needs_a_handler_that_takes_decoded_values(annotation: Any) -> None:
    with pytest.raises(Undecodable, match="upcaster needs"):
        shape_of(annotation).convert({})


@pytest.mark.parametrize(
    "annotation", [Order, StructOrder, DictOrder, ModelOrder], ids=lambda a: a.__name__
)
@pytest.mark.parametrize("bad", [b'{"id": "o-1"}', b'{"id": 1, "total": 5}', b"[]", b"null", b""])
def test_a_payload_of_another_shape_is_undecodable(annotation: Any, bad: bytes) -> None:
    with pytest.raises(Undecodable):
        decoded(annotation, bad)


@pytest.mark.parametrize("annotation", [Order, StructOrder, DictOrder, ModelOrder])
def test_a_value_of_another_shape_cannot_be_converted(annotation: Any) -> None:
    with pytest.raises(Undecodable):
        shape_of(annotation).convert({"id": "o-1"})


@pytest.mark.parametrize("annotation", SHAPES, ids=str)
@settings(max_examples=50, deadline=None)
@given(payload=st.binary() | st.sampled_from([b"{}", b"[1]", b'"x"', b"NaN", b"1e999", BODY]))
def test_any_bytes_are_decoded_or_undecodable(annotation: Any, payload: bytes) -> None:
    with suppress(Undecodable):
        decoded(annotation, payload)


@pytest.mark.parametrize("annotation", [Any, dict, ModelOrder], ids=str)
@pytest.mark.parametrize(
    "payload",
    [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"7" * 5000, b'"\xff"'],
    ids=lambda payload: payload[:6].decode("latin-1"),
)
def test_hostile_json_is_undecodable(annotation: Any, payload: bytes) -> None:
    with pytest.raises(Undecodable):
        decoded(annotation, payload)


def test_64_bit_numbers_stay_exact() -> None:
    assert plain(message(b"[9007199254740993, 18446744073709551615]")) == [2**53 + 1, 2**64 - 1]


@pytest.mark.parametrize("annotation", [Parcel, ModelParcel])
def test_a_types_own_check_that_raises_makes_the_payload_undecodable(annotation: Any) -> None:
    with pytest.raises(Undecodable, match="KeyError"):
        decoded(annotation, b'{"lines": {}}')
    with pytest.raises(Undecodable, match="KeyError"):
        shape_of(annotation).convert({"lines": {}})


def test_the_error_quotes_little_of_the_payload() -> None:
    with pytest.raises(Undecodable) as caught:
        decoded(ModelOrder, b'{"id": [' + b"1," * 10_000 + b'1], "total": "x"}')
    assert str(caught.value).startswith("ValidationError: ")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("annotation", ["Order", set[int] | list[int], 5])
def test_an_annotation_that_means_nothing_is_refused(annotation: Any) -> None:
    with pytest.raises(HandlerError, match="a payload cannot be decoded into"):
        shape_of(annotation)


@pytest.mark.parametrize("annotation", [Plain, list[Plain]])
def test_a_class_that_cannot_be_decoded_into_is_refused(annotation: Any) -> None:
    """Otherwise every message would become a dead letter."""
    with pytest.raises(HandlerError):
        shape_of(annotation)


def test_a_list_of_pydantic_models_is_decoded() -> None:
    assert decoded(list[ModelOrder], b"[" + BODY + b"]") == [ModelOrder(id="o-1", total=5)]
