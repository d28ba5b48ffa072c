"""Options of the Kafka benchmark."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

PARTITIONS = 4


class Options(msgspec.Struct, frozen=True):
    """Sizes; with the defaults it takes two minutes."""

    progress: Callable[[str], None]
    batch: int = 100
    rounds: int = 5
    messages: int = 10_000
