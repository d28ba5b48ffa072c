"""How headers and bytes become text that every database stores."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox import Delivery
from oncebox.errors import OnceboxError
from oncebox.model.message import (
    checked_deliveries,
    content_hash,
    headers_json,
    text_headers,
    text_of,
)
from support.deliveries import values


def test_missing_headers_stay_missing() -> None:
    assert headers_json({}) is None
    assert text_headers({}) == {}


def test_headers_are_written_as_text() -> None:
    headers = text_headers({"a": "ü", "b": "ü".encode()})
    assert headers_json(headers) == '{"a":"ü","b":"ü"}'


def test_bytes_that_are_not_utf8_are_escaped_and_not_lost() -> None:
    assert text_headers({"a": b"\xff\x00b", "\udcff": "\ud800", b"c": None}) == {
        "a": "\\xff\\0b",
        "\\udcff": "\\ud800",
        "c": None,
    }


class Unprintable:
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"count": 1, "queue": "orders"}], '[{"count":1,"queue":"orders"}]'),
        (7, "7"),
        (True, "true"),
        (1.5, "1.5"),
        (Decimal("1.50"), '"1.50"'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        (2**70, str(2**70)),
        ({b"a": 1}, '{"YQ==":1}'),
        (bytearray(b"abc"), "abc"),
        (memoryview(b"abc"), "abc"),
        (Unprintable(), "<Unprintable>"),
        ([Unprintable()], "<list>"),
    ],
)
def test_other_values_become_json_or_their_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_an_integer_that_python_refuses_to_print_has_a_text() -> None:
    assert text_of(10**5000) == "<int>"


def test_a_list_that_contains_itself_has_a_text() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert text_of(endless)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(values(), values(), min_size=1))
def test_any_headers_become_json_without_raw_nul(headers: dict[Any, Any]) -> None:
    text = headers_json(text_headers(headers))
    assert text is not None
    assert "\0" not in text
    text.encode()
    found = json.loads(text)
    assert all(value is None or isinstance(value, str) for value in found.values())


def test_missing_parameters_of_a_client_are_filled_in() -> None:
    given: Any = Delivery(None, headers=None, source="a\0", coordinates="\ud800")  # type: ignore[arg-type]
    (delivery,) = checked_deliveries([given])
    assert delivery == Delivery(b"null", source="a\\0", coordinates="\\ud800")
    buffers: list[Any] = [Delivery(bytearray(b"a")), Delivery(memoryview(b"b"))]  # type: ignore[arg-type]
    assert [d.body for d in checked_deliveries(buffers)] == [b"a", b"b"]


def test_a_delivery_that_needs_no_conversion_stays_the_same_object() -> None:
    delivery = Delivery(b"{}", {"a": b"1"}, source="orders", coordinates="0/1")
    assert checked_deliveries([delivery])[0] is delivery


@pytest.mark.parametrize(
    "changes", [{"body": "text"}, {"headers": [("a", "b")]}, {"source": 1}, {"coordinates": 1}]
)
def test_wrong_configuration_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OnceboxError, match=rf"Delivery\.{next(iter(changes))} must be"):
        checked_deliveries([Delivery(**{"body": b"", **changes})])


def test_a_content_hash_is_the_same_in_every_process() -> None:
    # printf '{"a": 1}' | b2sum -l 128
    assert content_hash(b'{"a": 1}').hex() == "6903fb303cd60ccb0a2b9c2592fa773b"
