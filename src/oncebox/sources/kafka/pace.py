"""Pace: what must not be done again and again."""

from __future__ import annotations

import time
from typing import Any

from oncebox import reports

LONGEST_PAUSE = 30.0
"""Seconds between leaving the group and joining it again, at most."""

REPEAT = 60.0
"""Seconds within which the same complaint is not repeated."""


class Rejoin:
    """When the group is left and joined again: at once, and then more and more seldom."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_leaving = False
        self._not_before = 0.0
        self._pause = 0.5

    def is_due(self) -> bool:
        return self.is_wanted and not self.is_leaving and time.monotonic() >= self._not_before

    def begin(self) -> None:
        self.is_wanted, self.is_leaving = False, True
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause

    def end(self) -> None:
        self.is_leaving = False

    def succeeded(self) -> None:
        self._pause = 0.5


class Complaints:
    """Warnings of a source, each kind of them now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[Any, float] = {}

    def about(self, kind: Any, text: str) -> None:
        """Say it, unless it was said lately."""
        now = time.monotonic()
        if now - self._told.get(kind, -REPEAT) >= REPEAT:
            self._told[kind] = now
            reports.logger.warning("%s: %s", self._name, text)
