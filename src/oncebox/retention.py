"""Retention: how long messages are remembered, and how far the memory may be shortened now. Pure.

What was forgotten cannot be told from a duplicate any more: so there is a mark, and what was minted
before it and arrives as new is quarantined. The mark must not pass what is still to come: it waits
while a source lags, and while nothing comes at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from oncebox.errors import ConfigurationError

LATELY = timedelta(minutes=5)
"""What arrived within this time tells how old the messages are that are still to come."""

NEVER = datetime.min.replace(tzinfo=UTC)


class Retention(msgspec.Struct, frozen=True):
    """Messages are forgotten this many days after they arrived, if nothing is left to do."""

    days: float = 7
    archive: str | None = None
    """Where they are written before: a directory, or a URL that fsspec knows."""

    def __post_init__(self) -> None:
        if self.archive is not None and not (isinstance(self.archive, str) and self.archive):
            raise ConfigurationError(f"archive is a directory or a URL, not {self.archive!r}")
        number = isinstance(self.days, int | float) and not isinstance(self.days, bool)
        if not number or not 0 < self.days < 36_500:
            raise ConfigurationError(f"days is a number of days, not {self.days!r}")

    @property
    def age(self) -> timedelta:
        return timedelta(days=self.days)


A_WEEK = Retention()


def checked_retention(retention: Retention | None) -> Retention | None:
    """A retention, and not something else; None keeps everything."""
    if retention is not None and not isinstance(retention, Retention):
        raise ConfigurationError(f"retention is Retention(days=...) or None, not {retention!r}")
    return retention


class PartSight(msgspec.Struct, frozen=True):
    """How a part of a source stands."""

    name: str
    lag: int | None
    """How much is to come; None where nothing will, or nobody knows."""
    is_alive: bool
    """Whether somebody reads it, and was heard of."""
    seen_at: datetime | None
    moved_at: datetime


class Sight(msgspec.Struct, frozen=True):
    """What the database knows about what is still to come."""

    received_at: datetime | None
    """When anything arrived for the last time."""
    minted_at: datetime | None
    """The oldest of what arrived lately."""
    parts: Sequence[PartSight] = ()


class Horizon(msgspec.Struct, frozen=True):
    """How far the mark may go, and why it goes no further."""

    mark: datetime | None
    """None: not at all."""
    held_by: Sequence[str] = ()


def horizon(sight: Sight, retention: Retention) -> Horizon:
    """The mark that nothing to come is older than, as far as can be known."""
    if sight.received_at is None:
        return Horizon(None)
    # Time stands still while nothing comes: whoever was down finds everything as it was.
    limits = [(sight.received_at - retention.age, "")]
    if sight.minted_at is not None:
        limits.append((sight.minted_at, "messages that arrived lately are old"))
    limits += [limit for part in sight.parts if (limit := _limit(part, sight.received_at))]
    mark = min(at for at, _ in limits)
    held_by = [why for at, why in limits if why and at < limits[0][0]]
    return Horizon(None if mark == NEVER else mark, held_by)


FORGOTTEN = timedelta(hours=1)
"""A part that was read to its end, and by nobody for so long, is not read any more."""


def is_behind(part: PartSight, now: datetime) -> bool:
    """Whether messages of a part may be still to come that are older than what has arrived."""
    if part.lag is None:
        return False
    if part.lag > 0 or part.is_alive:
        return part.lag > 0
    return now - (part.seen_at or part.moved_at) <= FORGOTTEN


def _limit(part: PartSight, received_at: datetime) -> tuple[datetime, str] | None:
    if part.lag is None:
        return None
    if part.lag == 0:
        if part.is_alive or part.seen_at is None:
            return None
        return part.seen_at, f"{part.name} is read by nobody"
    if part.moved_at >= received_at - LATELY:
        return None  # how old its messages are is seen by what arrived
    return NEVER, f"{part.name} does not go on, and {part.lag:,} are to come"
