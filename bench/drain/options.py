"""Options: how much of everything."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Options(msgspec.Struct, frozen=True):
    """How much of everything; the defaults fit into five minutes."""

    progress: Callable[[str], None]
    batch: int = 100
    rounds: int = 5
    messages: int = 30_000
    workers: int = 4
    limit: float = 4.0
    """Seconds after which a round is over, whatever is left."""
    wall: int = 100_000
    backlogs: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    history: int = 200_000
    """The goal speaks of 5M."""
    through: int = 200_000
    """The goal speaks of 5M."""
