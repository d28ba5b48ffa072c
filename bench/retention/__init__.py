"""Retention: what purging, archiving and replaying cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from bench.environment import Environment
from bench.retention import archive, purge, replay
from bench.retention.options import Options


class Part(msgspec.Struct, frozen=True):
    """Something that is measured; it yields the lines of its report."""

    name: str
    measure: Callable[[Environment, Options], Iterator[str]]


ALL = [
    Part("purge", purge.purge),
    Part("archive", archive.archive),
    Part("replay", replay.replay),
]
