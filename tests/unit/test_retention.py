"""How far the memory may be shortened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox import Retention
from oncebox.errors import ConfigurationError
from oncebox.retention import Horizon, PartSight, Sight, horizon

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)
WEEK = Retention(days=7)


def part(**how: Any) -> PartSight:
    usual = {"lag": 0, "is_alive": True, "seen_at": NOW, "moved_at": NOW}
    return PartSight("orders/0", **{**usual, **how})


def mark(*parts: PartSight, minted_at: datetime | None = None) -> Horizon:
    return horizon(Sight(NOW, minted_at, parts), WEEK)


def test_the_mark_is_as_far_back_as_the_retention() -> None:
    assert mark().mark == NOW - 7 * DAY
    assert mark(part(), minted_at=NOW - DAY) == mark()


def test_nothing_is_forgotten_before_anything_has_come() -> None:
    assert horizon(Sight(None, None), WEEK).mark is None


def test_the_mark_stays_behind_what_arrived_lately() -> None:
    """A backlog of nine days is being caught up."""
    found = mark(minted_at=NOW - 9 * DAY)
    assert found.mark == NOW - 9 * DAY
    assert found.held_by == ["messages that arrived lately are old"]


@pytest.mark.parametrize(
    ("how", "back"),
    [
        ({"lag": 5}, 7),
        ({"lag": 5, "moved_at": NOW - DAY}, None),
        ({"lag": 5, "is_alive": False, "moved_at": NOW - DAY}, None),
        ({"is_alive": False, "seen_at": NOW - 2 * DAY}, 7),
        ({"is_alive": False, "seen_at": NOW - 9 * DAY}, 9),
        ({"is_alive": False, "seen_at": None, "lag": None}, 7),
    ],
)
def test_a_part_that_is_not_read_holds_the_mark(how: dict[str, Any], back: int | None) -> None:
    found = mark(part(), part(**how))
    assert found.mark == (None if back is None else NOW - back * DAY)
    assert bool(found.held_by) is (back != 7)


@pytest.mark.parametrize("days", [0, -1, "7", None, True, float("nan")])
def test_a_retention_is_a_number_of_days(days: Any) -> None:
    with pytest.raises(ConfigurationError):
        Retention(days=days)
