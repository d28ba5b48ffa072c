"""Position: how far a partition of a source has been read."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Position(msgspec.Struct, frozen=True):
    """The next offset of a partition, and the worker that reads it."""

    partition: str
    next: int
    log_id: str | None = None
    """Identifies the log: another file or topic of the same name has another id."""
    owner: str | None = None
    """The unique id of the worker that reads it."""
    owner_name: str | None = None
    batch: int = 0
    suspects: int = 0
    """The number of next messages that were in flight when the previous owner vanished."""
    is_overdue: bool = False
    """True if the heartbeat of its owner is overdue."""
    moved_at: datetime | None = None


class Gauge(msgspec.Struct, frozen=True):
    """Measurements of a partition by its source, in the unit of its position."""

    lag: int | None = None
    """The distance from the position to the end."""
    settled: int | None = None
    """The position that was committed to the broker."""
    age: float = 0.0
    """Seconds since the lag was measured."""


class Skip(msgspec.Struct, frozen=True):
    """A move of a position past messages that the source has deleted."""

    source: str
    partition: str
    owner: str
    old: int
    new: int
    log_id: str | None
    count: int
    """The largest number of messages that may have been lost."""
    why: str


class Advance(msgspec.Struct, frozen=True):
    """A move of a position, committed with the work of the messages that it passes."""

    source: str
    partition: str
    owner: str
    old: int
    new: int
    heartbeat_timeout: float
    """Seconds until the next heartbeat of the owner is overdue."""
    log_id: str | None = None
    suspects: int = 0
