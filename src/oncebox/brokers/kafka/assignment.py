"""Assigned partitions and their fetched messages, shared by the poller thread and the reader."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition
from typing import TYPE_CHECKING

from oncebox.brokers.kafka.partition import Partition, partition_name
from oncebox.errors import OnceboxError
from oncebox.model.position import Position

if TYPE_CHECKING:
    from confluent_kafka import Message

MAX_MESSAGES = 2_000
"""The most messages that are buffered."""

MAX_BYTES = 16_000_000
"""Bytes of messages that are buffered; the last message may exceed it."""


class Assignment:
    """All partitions that are assigned to this consumer.

    Two threads use it: the poller fills the buffers, the reader takes batches from them.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._partitions: dict[str, Partition] = {}
        self._messages = self._bytes = 0
        self._is_reassigned = False
        self._revoked: set[str] = set()
        self._in_flight: tuple[str, float] | None = None
        self._failure: BaseException | None = None
        self.is_closing = False

    # -- both threads -----------------------------------------------------------------------------

    def get(self, name: str) -> Partition | None:
        with self._changed:
            return self._partitions.get(name)

    def all(self) -> list[Partition]:
        with self._changed:
            return list(self._partitions.values())

    def close(self) -> None:
        with self._changed:
            self.is_closing = True
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, or the source closes. Returns True if it holds."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self.is_closing, seconds)
            return condition()

    # -- the poller thread ------------------------------------------------------------------------

    def add(self, partitions: list[Partition]) -> None:
        """Add partitions that the broker assigned; the reader has to open them."""
        with self._changed:
            self._partitions |= {partition.name: partition for partition in partitions}
            self._is_reassigned = True
            self._changed.notify_all()

    def revoke(self, names: list[str]) -> list[Partition]:
        """Drop the buffered messages of partitions, and let the reader release them."""
        with self._changed:
            revoked = [self._partitions[name] for name in names if name in self._partitions]
            for partition in revoked:
                partition.is_assigned = False
                self._empty(partition)
            self._revoked.update(names)
            self._is_reassigned = True
            self._changed.notify_all()
            return revoked

    def remove(self, partitions: list[Partition]) -> None:
        with self._changed:
            for partition in partitions:
                if self._partitions.get(partition.name) is partition:
                    del self._partitions[partition.name]

    def buffer(self, messages: list[Message]) -> None:
        """Buffer fetched messages in order; drop those that are not for the reader."""
        with self._changed:
            for message in messages:
                partition = self._partitions.get(
                    partition_name(message.topic() or "", message.partition() or 0)
                )
                offset = message.offset() or 0
                if (
                    partition is None
                    or not partition.is_fetched
                    or offset <= partition.last_fetched
                ):
                    continue
                partition.last_fetched, partition.end = offset, None
                partition.queue.append(message)
                self._messages += 1
                self._bytes += len(message)
            self._changed.notify_all()

    def free_space(self, seconds: float) -> int:
        """Return how many more messages fit into the buffer; waits a while if it is full."""
        if not self.wait(lambda: not self._is_full(), seconds):
            return 0
        with self._changed:
            size = self._bytes // self._messages if self._messages else 1
            by_size = max(1, (MAX_BYTES - self._bytes) // max(1, size))
            return max(1, min(MAX_MESSAGES - self._messages, by_size))

    def reached_end(self, partition: Partition, offset: int) -> None:
        """Record that all messages before this offset were fetched."""
        with self._changed:
            partition.end = offset

    def offsets_to_store(self) -> list[tuple[Partition, int, int]]:
        """Return the new offsets for librdkafka to commit, each with the partition's position."""
        with self._changed:
            found = []
            for partition in self._partitions.values():
                position = offset = partition.acked
                # After the last message there may be transaction markers: no reader waits for them.
                if offset is not None and partition.end is not None and _is_drained(partition):
                    offset = max(offset, partition.end)
                if position is not None and offset is not None and offset != partition.stored:
                    partition.stored = offset
                    found.append((partition, offset, position))
            return found

    def in_flight(self) -> tuple[str, float] | None:
        """Return the partition whose batch is in flight, and since when."""
        with self._changed:
            return self._in_flight

    def fail(self, error: BaseException) -> None:
        """Let the reader raise the error that ended the poller."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # -- the reader -------------------------------------------------------------------------------

    def is_reassigned(self) -> bool:
        with self._changed:
            self._raise_failure()
            return self._is_reassigned

    def assigned(self) -> list[str]:
        """Return the assigned partitions.

        The first call after a partition was revoked leaves it out, even if it was assigned again
        meanwhile: the reader has to release it and look up its position again.
        """
        with self._changed:
            self._raise_failure()
            revoked, self._revoked = self._revoked, set()
            assigned = {p.name for p in self._partitions.values() if p.is_assigned}
            self._is_reassigned = bool(revoked & assigned)
            return sorted(assigned - revoked)

    def open(self, position: Position) -> None:
        """Let the poller fetch a partition from its position on."""
        with self._changed:
            partition = self._partitions.get(position.partition)
            if partition is not None and partition.is_assigned:
                partition.position = position
            self._changed.notify_all()

    def mark_unavailable(self, partition: Partition) -> None:
        """Let the poller know that a partition cannot be opened at present."""
        with self._changed:
            partition.is_unavailable = True
            self._changed.notify_all()

    def take(self, limit: int, seconds: float) -> tuple[Partition, list[Message]] | None:
        """Take messages of the next partition; None if there are none, or partitions changed.

        A partition with deleted messages before its start offset comes first without messages.
        """
        with self._changed:
            self._in_flight = None
            self._changed.wait_for(self._is_ready, seconds)
            self._raise_failure()
            partition = None if self._is_reassigned else self._next_readable()
            if partition is None:
                return None
            # The next call starts with the other partitions.
            self._partitions[partition.name] = self._partitions.pop(partition.name)
            count = min(_limit(partition, limit), len(partition.queue))
            messages = [partition.queue.popleft() for _ in range(count)]
            self._messages -= count
            self._bytes -= sum(map(len, messages))
            self._in_flight = (partition.name, time.monotonic())
            self._changed.notify_all()
            return partition, messages

    def ack(self, name: str, offset: int) -> None:
        """Record that all messages of a partition before an offset are processed."""
        with self._changed:
            self._in_flight = None
            partition = self._partitions.get(name)
            if (
                partition is not None
                and partition.start is not None
                and partition.position is not None
            ):
                partition.acked = offset

    def release(self, name: str) -> bool:
        """Stop reading a partition. Returns True if it was still assigned."""
        with self._changed:
            partition = self._partitions.get(name)
            if partition is None or partition.position is None:
                return False
            was_assigned = partition.is_assigned
            partition.is_assigned = False
            partition.position = None
            self._empty(partition)
            self._changed.notify_all()
            return was_assigned

    # -- under the lock ---------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        is_ready = self._is_reassigned or self._failure or self._messages or self.is_closing
        return bool(is_ready) or any(partition.skipped for partition in self._partitions.values())

    def _next_readable(self) -> Partition | None:
        partitions = self._partitions.values()
        return next((p for p in partitions if p.is_assigned and (p.queue or p.skipped)), None)

    def _is_full(self) -> bool:
        return self._messages >= MAX_MESSAGES or self._bytes >= MAX_BYTES

    def _empty(self, partition: Partition) -> None:
        self._messages -= len(partition.queue)
        self._bytes -= sum(map(len, partition.queue))
        partition.queue.clear()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closing:
            raise OnceboxError("the source is closed; create a new one")


def _is_drained(partition: Partition) -> bool:
    """Return True if all fetched messages are processed.

    At least one must have been fetched: the end of the partition may have been reported before it
    was assigned to this consumer.
    """
    was_fetched = partition.start is not None and partition.last_fetched >= partition.start
    return was_fetched and partition.acked == partition.next == partition.last_fetched + 1


def _limit(partition: Partition, limit: int) -> int:
    """Return how many messages may be taken at once: none before a gap, suspects one by one."""
    if partition.skipped:
        return 0
    return 1 if partition.suspects else limit
