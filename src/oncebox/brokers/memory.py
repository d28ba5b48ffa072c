"""A queue in memory for tests: it duplicates, reorders and loses acks as real brokers do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from oncebox.brokers.contract import Batch, Features, SourceEnded
from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome


class MemorySource:
    """Delivers a list of deliveries as a queue does: duplicated, reordered, with lost acks.

    The same seed produces the same faults. Messages that are not acked come again, with
    `redelivered=True`. `extended` and `nacked` record the batches of these calls.
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
        self.extended: list[Batch] = []
        self.nacked: list[Batch] = []
        self._random = random.Random(seed)
        self._lost_acks = lost_acks
        self._queue = deque(self._disturbed(list(deliveries), duplicated, reordered))
        self._in_flight: list[Batch] = []

    def _disturbed(
        self, deliveries: list[Delivery], duplicated: float, reordered: float
    ) -> list[Delivery]:
        copies = [d for d in deliveries if self._random.random() < duplicated]
        for copy in copies:
            deliveries.insert(self._random.randint(0, len(deliveries)), copy)
        for place in range(len(deliveries) - 1):
            if self._random.random() < reordered:
                deliveries[place : place + 2] = reversed(deliveries[place : place + 2])
        return deliveries

    def read(self, limit: int, seconds: float) -> Batch | None:
        if not self._queue:
            if self._in_flight:
                return None
            raise SourceEnded
        count = min(limit, len(self._queue))
        batch = Batch([self._queue.popleft() for _ in range(count)])
        self._in_flight.append(batch)
        return batch

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        if self._remove(batch):
            lost = [d for d in batch.deliveries if self._random.random() < self._lost_acks]
            self._queue.extend(map(_redelivered, lost))

    def nack(self, batch: Batch) -> None:
        self.nacked.append(batch)
        if self._remove(batch):
            self._return(batch)

    def extend(self, batch: Batch) -> None:
        self.extended.append(batch)

    def trouble(self) -> None:
        """Memory can always be read."""

    def disconnect(self) -> None:
        """Lose the connection: deliveries in flight come again, and their receipts are stale."""
        lost, self._in_flight = self._in_flight, []
        for batch in reversed(lost):
            self._return(batch)

    def close(self) -> None:
        self.disconnect()

    def _remove(self, batch: Batch) -> bool:
        """Remove a batch from those in flight; False if its receipt is stale."""
        kept = [known for known in self._in_flight if known is not batch]
        was_in_flight = len(kept) < len(self._in_flight)
        self._in_flight = kept
        return was_in_flight

    def _return(self, batch: Batch) -> None:
        """Put the messages of a batch back to the front of the queue."""
        self._queue.extendleft(map(_redelivered, reversed(batch.deliveries)))


def _redelivered(delivery: Delivery) -> Delivery:
    return msgspec.structs.replace(delivery, redelivered=True)
