"""The contracts of sources: QueueSource for queues, PartitionedSource for partitioned logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal, Protocol, runtime_checkable

import msgspec

from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome
from oncebox.model.position import Gauge, Position


class SourceEnded(Exception):
    """Raised by read() of a finite queue once everything was delivered and acked."""


class Features(msgspec.Struct, frozen=True):
    """What a source promises."""

    order: Literal["none", "key", "partition"] = "none"
    """What the source delivers in order: nothing, the messages of a key, or a whole partition."""
    durable: bool = False
    """Messages that were not acked are delivered again, also after a crash of the consumer."""
    assigns: bool = False
    """The broker assigns partitions to consumers. Otherwise consumers take them over in the
    database."""
    redeliveries: bool = False
    """The broker flags deliveries of messages that it delivered before."""
    ends: bool = False
    """The source is finite."""
    single: bool = False
    """Only one worker can read the source."""


class Batch(msgspec.Struct, frozen=True):
    """Deliveries of one queue or one partition, in order."""

    deliveries: Sequence[Delivery]
    partition: str = ""
    old: int = 0
    """The partition's position before these deliveries. Queues have no positions."""
    new: int = 0
    """The partition's position after these deliveries."""
    log_id: str | None = None
    """See Position.log_id."""
    convert: Callable[[], Sequence[Delivery]] | None = None
    """Converts a single message that may crash the process. `deliveries` then holds what can be
    read without conversion, to be quarantined if the conversion crashes."""
    skipped: int = 0
    """Upper bound of the messages between the two positions that the broker deleted unread. The
    batch has no deliveries then."""


class QueueSource(Protocol):
    """A queue that delivers messages and waits for their acks. One thread uses it at a time.

    `ack`, `nack` and `extend` never raise for a lost connection or a stale receipt. The broker then
    delivers the messages again, and the inbox absorbs the duplicates.
    """

    name: str
    features: Features

    def read(self, limit: int, seconds: float) -> Batch | None:
        """Return up to `limit` deliveries, or None if none arrive within `seconds`.

        A finite queue raises SourceEnded once every delivery is acked.
        """
        ...

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """Acknowledge a batch to the broker: the outcome of every delivery is committed.

        The source acks all of them: a failed message is already stored in the inbox.
        """
        ...

    def nack(self, batch: Batch) -> None:
        """Return deliveries that were not processed to the broker, which delivers them again."""
        ...

    def extend(self, batch: Batch) -> None:
        """Extend the lease (ack deadline, visibility timeout) of deliveries in flight.

        The consumer calls it every few seconds while it waits for the database, but not while
        handlers run. So a source must request a lease that is longer than a transaction.
        """
        ...

    def trouble(self) -> str | None:
        """Return why the source cannot be read at present, or None if it can."""
        ...

    def close(self) -> None:
        """Disconnect. Deliveries that were read ahead return to the broker."""
        ...


@runtime_checkable
class PartitionedSource(QueueSource, Protocol):
    """A partitioned log, such as Kafka. The inbox's database stores a position per partition.

    The position decides what is read, and the broker's own record of acks only follows it. So
    `nack` closes the batch's partition. Its messages come again when open() is called with the
    position in the database.
    """

    def partitions(self) -> Sequence[str]:
        """Return the partitions that can be read now.

        If the broker assigns partitions, return only the assigned ones.
        """
        ...

    def is_reassigned(self) -> bool:
        """Return True if partitions came or went since the last call of partitions().

        read() returns None until partitions() is called again.
        """
        ...

    def start_position(self, partition: str) -> Position | None:
        """Return where to start a partition without a position; None if it cannot be read now."""
        ...

    def open(self, position: Position) -> None:
        """Read a partition from a position on; all messages before it are processed."""
        ...

    def gauge(self, partition: str) -> Gauge:
        """Return how far behind the reader of an open partition is."""
        ...

    def release(self, partition: str) -> None:
        """Stop reading a partition; none of its deliveries is in flight."""
        ...

    def is_finished(self, partition: str, position: Position | None) -> bool:
        """Return True if no message can follow in a partition that was read up to `position`."""
        ...

    def retention(self) -> timedelta | None:
        """Return how long the source can deliver a message again; None if that is unknown."""
        ...
