"""Times and lists in the form that SQLite stores: integers and JSON."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec

BLOCKED = 2**63 - 1
"""The available_at of a blocked message: the largest integer stands for infinity."""

MINUTE = 60_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def now() -> int:
    """The time in microseconds since 1970."""
    return time.time_ns() // 1000


def later(seconds: float) -> int:
    """The time in `seconds` seconds."""
    return now() + round(seconds * 1_000_000)


def microseconds(time: datetime | None) -> int | None:
    """A time in the form that SQLite stores."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def instant(microseconds: int | None) -> datetime | None:
    """A time that SQLite stored."""
    return None if microseconds is None else _EPOCH + microseconds * _MICROSECOND


def json(value: object) -> str:
    """A list as a parameter."""
    return msgspec.json.encode(value).decode()
