"""psycopg dumpers that send packed arrays unchanged."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

from oncebox.storage.drivers.psycopg.arrays import (
    Bigints,
    Binaries,
    Integers,
    Packed,
    Smallints,
    Texts,
)


class _PackedDumper(Dumper):
    """Sends the bytes of a packed array."""

    format = Format.BINARY

    def __init__(self, cls: type[Packed], context: Any = None) -> None:
        super().__init__(cls, context)
        # Not as an attribute of the class: psycopg would use it for all arrays of that type.
        self.oid = cls.oid

    def dump(self, obj: Packed) -> bytes:
        return obj


def register_arrays(connection: Any) -> None:
    """Register the dumpers for packed arrays on a connection, unless they are registered."""
    try:
        known = connection.adapters.get_dumper(Texts, PyFormat.BINARY) is _PackedDumper
    except psycopg.ProgrammingError:
        known = False
    if not known:
        for kind in (Texts, Binaries, Smallints, Integers, Bigints):
            connection.adapters.register_dumper(kind, _PackedDumper)
