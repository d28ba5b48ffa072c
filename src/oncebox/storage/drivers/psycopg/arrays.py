"""Pack lists of texts, binary strings and integers into PostgreSQL's binary array format.

psycopg inspects each element of a list several times, which takes five times as long. Lists with
NULLs, long texts or other special cases are left to psycopg.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

_HEAD = struct.Struct("!iiIii")
"""Dimensions, NULL flag, element type, number of elements, lower bound."""

_LENGTH = struct.Struct("!i")

_LENGTHS = tuple(struct.pack("!i", length).decode("latin-1") for length in range(256))
"""The length prefix of a text, by its length."""


class Packed(bytes):
    """A packed array. Its class determines the element type."""

    __slots__ = ()
    oid: int
    """The OID of its PostgreSQL type."""


class Texts(Packed):
    """text[]"""

    __slots__ = ()
    oid = 1009


class Binaries(Packed):
    """bytea[]"""

    __slots__ = ()
    oid = 1001


class Smallints(Packed):
    """smallint[]"""

    __slots__ = ()
    oid = 1005


class Integers(Packed):
    """integer[]"""

    __slots__ = ()
    oid = 1007


class Bigints(Packed):
    """bigint[]"""

    __slots__ = ()
    oid = 1016


def _texts(values: list[Any]) -> Any:
    if set(map(type, values)) != {str}:
        return values
    joined = "".join(values)
    if not joined.isascii() or "\0" in joined:  # ASCII is the same in every client encoding
        return values
    try:
        lengths = [_LENGTHS[length] for length in map(len, values)]
    except IndexError:
        return values
    flat = [""] * (2 * len(values))
    flat[::2], flat[1::2] = lengths, values
    return Texts(_HEAD.pack(1, 0, 25, len(values), 1) + "".join(flat).encode("latin-1"))


def _binaries(values: list[Any]) -> Any:
    if set(map(type, values)) != {bytes}:
        return values
    flat = [b""] * (2 * len(values))
    flat[::2], flat[1::2] = [_LENGTH.pack(length) for length in map(len, values)], values
    return Binaries(_HEAD.pack(1, 0, 17, len(values), 1) + b"".join(flat))


def _integers(kind: type[Packed], oid: int, code: str) -> Callable[[list[Any]], Any]:
    size = struct.calcsize(f"!{code}")

    def integers(values: list[Any]) -> Any:
        if set(map(type, values)) != {int}:
            return values
        flat = [size] * (2 * len(values))
        flat[1::2] = values
        try:
            items = struct.pack("!" + f"i{code}" * len(values), *flat)
        except struct.error:  # out of range: the server reports it
            return values
        return kind(_HEAD.pack(1, 0, oid, len(values), 1) + items)

    return integers


PACKERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "text": _texts,
    "bytea": _binaries,
    "smallint": _integers(Smallints, 21, "h"),
    "integer": _integers(Integers, 23, "i"),
    "bigint": _integers(Bigints, 20, "q"),
}
"""Functions that pack a list, by element type; they return the list itself if they cannot."""
