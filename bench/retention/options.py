"""Options of the retention benchmark."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Options(msgspec.Struct, frozen=True):
    """Sizes; with the defaults it takes a quarter of an hour."""

    progress: Callable[[str], None]
    batch: int = 100
    rounds: int = 5
    messages: int = 30_000
    workers: int = 4
    rows: int = 1_000_000
    """Old messages that are purged, or archived and restored."""
    replayed: int = 100_000
