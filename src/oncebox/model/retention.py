"""Retention: how long finished messages are kept, and up to which time they may be purged now.

A duplicate of a purged message cannot be recognised. So each consumer has a watermark: a new
message that was produced before it is quarantined. The watermark must not pass messages that are
still to be delivered: it waits while a source lags, and while no messages arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from oncebox.errors import ConfigurationError

RECENT = timedelta(minutes=5)
"""The age of messages that arrived within this time shows how old the next ones may be."""

NEVER = datetime.min.replace(tzinfo=UTC)


class Retention(msgspec.Struct, frozen=True):
    """Finished messages are purged this many days after they arrived."""

    days: float = 7
    archive: str | None = None
    """Where messages are archived before they are purged: a directory, or a URL of fsspec."""

    def __post_init__(self) -> None:
        if self.archive is not None and not (isinstance(self.archive, str) and self.archive):
            raise ConfigurationError(f"archive must be a directory or a URL, got {self.archive!r}")
        number = isinstance(self.days, int | float) and not isinstance(self.days, bool)
        if not number or not 0 < self.days < 36_500:
            raise ConfigurationError(
                f"days must be more than 0 and less than 36500, got {self.days!r}"
            )

    @property
    def age(self) -> timedelta:
        return timedelta(days=self.days)


A_WEEK = Retention()


def checked_retention(retention: Retention | None) -> Retention | None:
    """The retention of an inbox; None keeps all messages. Raises ConfigurationError."""
    if retention is not None and not isinstance(retention, Retention):
        raise ConfigurationError(
            f"retention must be Retention(days=...) or None, got {retention!r}"
        )
    return retention


class PartitionProgress(msgspec.Struct, frozen=True):
    """The progress of one partition of a source."""

    name: str
    lag: int | None
    """The distance to the end of the partition; None if it is unknown or has no end."""
    is_alive: bool
    """True if a worker reads it and its heartbeat is not overdue."""
    seen_at: datetime | None
    moved_at: datetime


class ArrivalProgress(msgspec.Struct, frozen=True):
    """What the database knows about the age of messages that are still to be delivered."""

    received_at: datetime | None
    """When the last message arrived."""
    produced_at: datetime | None
    """The earliest produced_at of the messages that arrived recently."""
    partitions: Sequence[PartitionProgress] = ()


class PurgeLimit(msgspec.Struct, frozen=True):
    """The latest allowed watermark, and what holds it back."""

    watermark: datetime | None
    """None: the watermark must not advance."""
    held_back_by: Sequence[str] = ()


def purge_limit(arrival_progress: ArrivalProgress, retention: Retention) -> PurgeLimit:
    """The latest safe watermark: messages that are still to be delivered are probably newer."""
    if arrival_progress.received_at is None:
        return PurgeLimit(None)
    # Counted from the last arrival, not from now: after an outage of the source, its delayed
    # messages are not too late.
    limits = [(arrival_progress.received_at - retention.age, "")]
    if arrival_progress.produced_at is not None:
        limits.append((arrival_progress.produced_at, _catching_up(arrival_progress.produced_at)))
    limits += [
        limit
        for partition in arrival_progress.partitions
        if (limit := _limit(partition, arrival_progress.received_at))
    ]
    watermark = min(at for at, _ in limits)
    held_back_by = [why for at, why in limits if why and at < limits[0][0]]
    return PurgeLimit(None if watermark == NEVER else watermark, held_back_by)


def _catching_up(produced_at: datetime) -> str:
    when = f"{produced_at:%Y-%m-%d %H:%M} UTC"
    return f"a source is catching up: recent messages were produced on {when}"


ABANDONED = timedelta(hours=1)
"""A partition that was read to its end counts as abandoned after this time without a reader."""


def is_behind(partition: PartitionProgress, now: datetime) -> bool:
    """True if a partition may still deliver messages that are older than those that arrived."""
    if partition.lag is None:
        return False
    if partition.lag > 0 or partition.is_alive:
        return partition.lag > 0
    return now - (partition.seen_at or partition.moved_at) <= ABANDONED


def _limit(partition: PartitionProgress, received_at: datetime) -> tuple[datetime, str] | None:
    if partition.lag is None:
        return None
    if partition.lag == 0:
        if partition.seen_at is None or (
            partition.is_alive and partition.seen_at >= received_at - ABANDONED
        ):
            return None
        why = "cannot be read now" if partition.is_alive else "has no reader"
        return partition.seen_at, f"{partition.name} {why}"
    if partition.moved_at >= received_at - RECENT:
        return None  # the recent messages show how old its messages are
    return NEVER, f"{partition.name} makes no progress, with a lag of {partition.lag:,}"
