"""Dumpers: how psycopg sends arrays that are packed."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

from oncebox.database.arrays import Bigints, Integers, Packed, Smallints, Texts


class _PackedDumper(Dumper):
    """Sends an array as it is."""

    format = Format.BINARY

    def __init__(self, cls: type[Packed], context: Any = None) -> None:
        super().__init__(cls, context)
        # Not as an attribute of the class: psycopg would use it for all arrays of that type.
        self.oid = cls.oid

    def dump(self, obj: Packed) -> bytes:
        return obj.data


def teach_arrays(connection: Any) -> None:
    """Let a connection send arrays that are packed, unless it was taught before."""
    try:
        known = connection.adapters.get_dumper(Texts, PyFormat.BINARY) is _PackedDumper
    except psycopg.ProgrammingError:
        known = False
    if not known:
        for kind in (Texts, Smallints, Integers, Bigints):
            connection.adapters.register_dumper(kind, _PackedDumper)
