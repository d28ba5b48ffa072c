"""Availability of the brokers: decides when a Kafka source is in trouble, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence

from oncebox.brokers.kafka.partition import Partition


class Availability:
    """When brokers last answered, and what they refuse.

    Two threads use it: the poller records answers and errors, the reader calls trouble().
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        """Seconds without an answer after which the source is in trouble."""
        self._answered_at = time.monotonic()
        self._error = ""
        self._refusal: str | None = None

    def answered(self) -> None:
        """Record an answer of a broker."""
        self._answered_at = time.monotonic()

    def failed(self, error: str) -> None:
        """Record an error of the client."""
        self._error = error

    def refused(self, error: str) -> None:
        """Record that a broker denies access."""
        self._refusal = error

    def admitted(self) -> bool:
        """Record that a broker assigned partitions. Returns True if it denied access before."""
        was_refused, self._refusal = self._refusal is not None, None
        return was_refused

    def trouble(self, partitions: Sequence[Partition]) -> str | None:
        """Return why the source cannot be read now, or None if it can."""
        now = time.monotonic()
        if (silent := now - self._answered_at) > self._timeout:
            error = f" ({self._error})" if self._error else ""
            return f"no broker has answered for {silent:.0f} s{error}"
        if self._refusal is not None:
            return self._refusal
        late = [p.name for p in partitions if now - p.measured_at > self._timeout]
        return f"no leader answers for {', '.join(sorted(late))}" if late else None
