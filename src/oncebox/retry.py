"""Retry: when a failed message runs again, and when it does not."""

from __future__ import annotations

from datetime import timedelta
from math import inf

import msgspec

from oncebox.errors import ConfigurationError, Reject, RetryAfter


class Retry(msgspec.Struct, frozen=True):
    """Exponential backoff with jitter; after `max_attempts` failures, a dead letter."""

    max_attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(minutes=15)
    jitter: float = 0.2
    """The share of the delay that chance may add or take away."""

    def __post_init__(self) -> None:
        for name in ("first", "cap"):
            if not isinstance(getattr(self, name), timedelta):
                raise ConfigurationError(f"{name} is a timedelta, not {getattr(self, name)!r}")
        if self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts is {self.max_attempts}, must be at least 1")
        if self.first < timedelta(0) or self.cap < self.first:
            raise ConfigurationError(f"retry delays must satisfy 0 <= first <= cap: {self}")
        if not self.factor >= 1 or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"retry needs factor >= 1 and 0 <= jitter <= 1: {self}")

    def delay(self, attempts: int, error: BaseException, chance: float) -> timedelta | None:
        """How long to wait after this many failures; None: no further attempt, a dead letter.

        `chance` is a random number between 0 and 1.
        """
        if isinstance(error, Reject) or attempts >= self.max_attempts:
            return None
        if isinstance(error, RetryAfter):
            return error.delay
        return self.backoff(attempts, chance)

    def backoff(self, attempts: int, chance: float) -> timedelta:
        """The delay after this many failures in a row, whatever they were."""
        try:
            grown = self.first.total_seconds() * self.factor ** (attempts - 1)
        except OverflowError:
            grown = inf
        seconds = min(grown, self.cap.total_seconds())
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))
