"""Backoff for leaving the consumer group and joining it again."""

from __future__ import annotations

import time

INITIAL_PAUSE = 0.5
"""Half of the first pause between two rejoins, in seconds. Each pause is twice the last one."""

LONGEST_PAUSE = 30.0
"""The longest pause between two rejoins, in seconds."""


class Rejoin:
    """When to leave the group and join it again: at once, then with growing pauses."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_leaving = False
        self._not_before = 0.0
        self._pause = INITIAL_PAUSE

    def is_due(self) -> bool:
        return self.is_wanted and not self.is_leaving and time.monotonic() >= self._not_before

    def request(self) -> None:
        """Leave the group and join it again, so that every position is looked up again."""
        self.is_wanted = True

    def begin(self) -> None:
        self.is_wanted, self.is_leaving = False, True
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause

    def end(self) -> None:
        self.is_leaving = False

    def succeeded(self) -> None:
        self._pause = INITIAL_PAUSE
