"""Time and lists as SQLite keeps them: integers and JSON."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec

PARKED = 2**63 - 1
"""Infinity, as the largest integer."""

MINUTE = 60_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def later(seconds: float) -> int:
    """The time in so many seconds."""
    return now() + round(seconds * 1_000_000)


def microseconds(time: datetime | None) -> int | None:
    """An instant as SQLite keeps it."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def instant(microseconds: int | None) -> datetime | None:
    """An instant that SQLite kept."""
    return None if microseconds is None else _EPOCH + microseconds * _MICROSECOND


def json(value: object) -> str:
    """A list as a parameter."""
    return msgspec.json.encode(value).decode()
