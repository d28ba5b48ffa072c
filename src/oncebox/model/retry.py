"""Retry: when a failed message runs again, and when it becomes a dead letter."""

from __future__ import annotations

from datetime import timedelta
from math import inf

import msgspec

from oncebox.errors import ConfigurationError, Reject, RetryAfter, TransactionEnded
from oncebox.model.outcome import Reason


def reason_of(error: BaseException) -> Reason:
    """The reason of a dead letter that failed with this error."""
    if isinstance(error, Reject):
        return Reason.rejected
    # Part of its work may be committed: another attempt could do it twice.
    return (
        Reason.transaction_lost if isinstance(error, TransactionEnded) else Reason.out_of_attempts
    )


class Retry(msgspec.Struct, frozen=True):
    """Exponential backoff with jitter; after `max_attempts` failures, a dead letter."""

    max_attempts: int = 5
    initial_delay: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_delay: timedelta = timedelta(minutes=15)
    jitter: float = 0.2
    """The share of the delay that is randomly added or removed."""

    def __post_init__(self) -> None:
        for name in ("initial_delay", "max_delay"):
            if not isinstance(getattr(self, name), timedelta):
                raise ConfigurationError(f"{name} must be a timedelta, got {getattr(self, name)!r}")
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts must be an integer of at least 1, got {self.max_attempts!r}"
            )
        for name in ("factor", "jitter"):
            if not isinstance(getattr(self, name), int | float):
                raise ConfigurationError(f"{name} must be a number, got {getattr(self, name)!r}")
        if self.initial_delay < timedelta(0) or self.max_delay < self.initial_delay:
            raise ConfigurationError(f"Retry needs 0 <= initial_delay <= max_delay, got {self}")
        if not self.factor >= 1 or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry needs factor >= 1 and 0 <= jitter <= 1, got {self}")

    def delay(self, attempts: int, error: BaseException, chance: float) -> timedelta | None:
        """The delay before the next attempt, after this many failures; None for a dead letter.

        `chance` is a random number between 0 and 1.
        """
        if isinstance(error, Reject | TransactionEnded) or attempts >= self.max_attempts:
            return None
        if isinstance(error, RetryAfter):
            # Not negative: a worker searches from the last retry time on, and would miss it.
            return max(error.delay, timedelta(0))
        return self.backoff(attempts, chance)

    def backoff(self, attempts: int, chance: float) -> timedelta:
        """The delay after this many failures in a row, whatever the errors."""
        try:
            grown = self.initial_delay.total_seconds() * self.factor ** (attempts - 1)
        except OverflowError:
            grown = inf
        seconds = min(grown, self.max_delay.total_seconds())
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))
