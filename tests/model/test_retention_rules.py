"""Up to which time finished messages may be purged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox import Retention
from oncebox.errors import ConfigurationError
from oncebox.model.retention import ArrivalProgress, PartitionProgress, PurgeLimit, purge_limit

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)
WEEK = Retention(days=7)


def part(**how: Any) -> PartitionProgress:
    usual = {"lag": 0, "is_alive": True, "seen_at": NOW, "moved_at": NOW}
    return PartitionProgress("orders/0", **{**usual, **how})


def mark(*parts: PartitionProgress, produced_at: datetime | None = None) -> PurgeLimit:
    return purge_limit(ArrivalProgress(NOW, produced_at, parts), WEEK)


def test_the_watermark_is_as_old_as_the_retention() -> None:
    assert mark().watermark == NOW - 7 * DAY
    assert mark(part(), produced_at=NOW - DAY) == mark()


def test_nothing_is_purged_before_the_first_message() -> None:
    assert purge_limit(ArrivalProgress(None, None), WEEK).watermark is None


def test_the_watermark_stays_behind_recent_arrivals() -> None:
    """A backlog of nine days is being caught up."""
    found = mark(produced_at=NOW - 9 * DAY)
    assert found.watermark == NOW - 9 * DAY
    (why,) = found.held_back_by
    assert why.startswith("a source is catching up: recent messages were produced on ")
    assert f"{NOW - 9 * DAY:%Y-%m-%d %H:%M} UTC" in why


@pytest.mark.parametrize(
    ("how", "back"),
    [
        ({"lag": 5}, 7),
        ({"lag": 5, "moved_at": NOW - DAY}, None),
        ({"lag": 5, "is_alive": False, "moved_at": NOW - DAY}, None),
        ({"is_alive": False, "seen_at": NOW - 2 * DAY}, 7),
        ({"is_alive": False, "seen_at": NOW - 9 * DAY}, 9),
        ({"is_alive": False, "seen_at": None, "lag": None}, 7),
        ({"seen_at": NOW - 9 * DAY}, 9),  # its broker has not answered since
        ({"seen_at": None}, 7),
    ],
)
def test_a_partition_that_is_not_read_holds_back_the_watermark(
    how: dict[str, Any], back: int | None
) -> None:
    found = mark(part(), part(**how))
    assert found.watermark == (None if back is None else NOW - back * DAY)
    assert bool(found.held_back_by) is (back != 7)


@pytest.mark.parametrize("days", [0, -1, "7", None, True, float("nan")])
def test_a_retention_is_a_number_of_days(days: Any) -> None:
    with pytest.raises(ConfigurationError):
        Retention(days=days)
