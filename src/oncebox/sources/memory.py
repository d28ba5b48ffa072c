"""Memory: deliveries from a list, badly behaved on purpose. For tests."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec

from oncebox.message import Delivery
from oncebox.outcome import Outcome
from oncebox.sources.contract import Batch, Features
from oncebox.store.records import Gauge, Position


class MemorySource:
    """Hands over deliveries as a queue does: duplicated, reordered, with acks that get lost.

    The same seed makes the same mischief. What is not settled comes again, marked as redelivered.
    """

    features = Features(durable=True, redeliveries=True, ends=True, single=True)

    def __init__(
        self,
        deliveries: Iterable[Delivery],
        *,
        seed: int = 0,
        duplicated: float = 0.0,
        reordered: float = 0.0,
        lost_acks: float = 0.0,
        name: str = "memory",
    ) -> None:
        self.name = name
        self._chance = random.Random(seed)
        self._lost_acks = lost_acks
        self._queue = deque(self._disturbed(list(deliveries), duplicated, reordered))

    def _disturbed(
        self, deliveries: list[Delivery], duplicated: float, reordered: float
    ) -> list[Delivery]:
        copies = [d for d in deliveries if self._chance.random() < duplicated]
        for copy in copies:
            deliveries.insert(self._chance.randint(0, len(deliveries)), copy)
        for place in range(len(deliveries) - 1):
            if self._chance.random() < reordered:
                deliveries[place : place + 2] = reversed(deliveries[place : place + 2])
        return deliveries

    def parts(self) -> Sequence[str]:
        return [""]

    def is_reassigned(self) -> bool:
        return False

    def beginning(self, part: str) -> Position:
        return Position(part, 0)

    def open(self, position: Position) -> None:
        """A queue has no position."""

    def read(self, limit: int, seconds: float) -> Batch | None:
        count = min(limit, len(self._queue))
        batch = [self._queue.popleft() for _ in range(count)]
        return Batch(batch) if batch else None

    def settle(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if self._chance.random() < self._lost_acks:
                again = msgspec.structs.replace(outcome.delivery, redelivered=True)
                self._queue.append(again)

    def gauge(self, part: str) -> Gauge:
        return Gauge(lag=len(self._queue))

    def release(self, part: str) -> None:
        """A queue is nobody's own."""

    def is_finished(self, part: str, position: Position | None) -> bool:
        return not self._queue

    def keeps(self) -> timedelta | None:
        return None

    def close(self) -> None:
        self._queue.clear()
