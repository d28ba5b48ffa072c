"""Lists that are packed, and lists that are left to psycopg."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox.storage.drivers.parameters import translate
from oncebox.storage.drivers.psycopg.arrays import PACKERS, Packed


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("text", ["a", "", 'it"s', "\\", "{,}", "NULL", "x" * 255]),
        ("bytea", [b"a", b"", bytes(range(256)), b"x" * 1000]),
        ("smallint", [0, -1, 2**15 - 1, -(2**15)]),
        ("integer", [2**31 - 1, -(2**31)]),
        ("bigint", [2**63 - 1, -(2**63)]),
    ],
)
def test_simple_values_are_packed(type: str, values: list[Any]) -> None:
    assert isinstance(PACKERS[type](values), Packed)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("text", []),
        ("text", ["a", None]),
        ("text", ["ä"]),
        ("text", ["a\0b"]),
        ("text", ["x" * 256]),
        ("text", [["a"]]),
        ("text", [1]),
        ("bytea", []),
        ("bytea", [b"a", None]),
        ("bytea", ["a"]),
        ("bigint", [True]),
        ("bigint", [1.5]),
        ("bigint", [1, None]),
        ("bigint", [2**63]),
        ("smallint", [2**15]),
    ],
)
def test_other_values_are_left_unchanged(type: str, values: list[Any]) -> None:
    assert PACKERS[type](values) is values


def test_only_lists_whose_type_is_said_are_packed() -> None:
    text = "SELECT :a::text[], :b :: BIGINT [], :c, :d::json, :e::text[]"
    statement = translate(text, "binary", packed=True)
    given = {"a": ["x"], "b": [1], "c": [1], "d": [1], "e": ("x",)}
    packed = [isinstance(value, Packed) for value in statement.bind(given)]
    assert packed == [True, True, False, False, False]
    assert translate("SELECT :a::text[]", "dollar").bind({"a": ["x"]}) == (["x"],)
