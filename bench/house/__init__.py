"""Keeping house: what it costs to forget, to archive and to replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bench.house import archive, purge, replay
from bench.house.options import Options
from bench.place import Place


class Part(msgspec.Struct, frozen=True):
    """Something that is measured; it yields the lines of its report."""

    name: str
    measure: Callable[[Place, Options], Iterator[str]]


ALL = [
    Part("purge", purge.purge),
    Part("archive", archive.archive),
    Part("replay", replay.replay),
]
