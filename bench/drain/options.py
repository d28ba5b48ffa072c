"""Options of the drain benchmark."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Options(msgspec.Struct, frozen=True):
    """Sizes; with the defaults it takes five minutes."""

    progress: Callable[[str], None]
    batch: int = 100
    rounds: int = 5
    messages: int = 30_000
    workers: int = 4
    limit: float = 4.0
    """Seconds after which a round is over, whatever is left."""
    blocked: int = 100_000
    """Messages of one blocked key in front of the others."""
    backlogs: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    history: int = 200_000
    """The goal speaks of 5M."""
    through: int = 200_000
    """The goal speaks of 5M."""
