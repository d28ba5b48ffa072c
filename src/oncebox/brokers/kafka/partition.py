"""State of one Kafka partition that is assigned to this consumer."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from oncebox.brokers.kafka.start_offset import Facts, LogId, Start
from oncebox.model.position import Position

if TYPE_CHECKING:
    from confluent_kafka import Message

logger = logging.getLogger("oncebox")


class Partition:
    """A partition that is assigned to this consumer."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.name = partition_name(topic, partition)
        self.facts = Facts()
        self.is_assigned = True
        """False once the partition is revoked or released."""
        self.position: Position | None = None
        """The position that the reader found in the database; None while it is not open."""
        self.is_unavailable = False
        """True if the partition cannot be read at present."""
        self.start: int | None = None
        """The offset that it is fetched from; None until the position is known."""
        self.is_validated = True
        """False until the leader epoch of the start offset is compared with the log."""
        self.next = 0
        """The position after the last batch that was handed to the reader."""
        self.log_id = LogId()
        self.skipped = 0
        """Upper bound of the messages that were deleted between the position and the start offset.
        0 once the reader knows of them."""
        self.suspects = 0
        """Number of the next messages that may crash the process."""
        self.queue: deque[Message] = deque()
        self.last_fetched = -1
        """The last offset that was fetched."""
        self.end: int | None = None
        """The offset at which the client reported the end of the partition."""
        self.high: int | None = None
        """The offset after the last message."""
        self.measured_at = time.monotonic()
        """When the leader last reported `high`; at first, when the partition was assigned."""
        self.acked: int | None = None
        """The offset before which all messages are processed."""
        self.stored: int | None = None
        """The offset that was handed to librdkafka, which commits it."""
        self.committed: int | None = None
        """The offset that the broker has committed."""

    def begin(self, start: Start, position: Position) -> None:
        """Fetch the partition from a start offset on."""
        self._log(start, position)
        self.log_id, self.next, self.skipped = start.log_id, position.next, start.skipped
        self.suspects, self.high = position.suspects, self.facts.high
        if start.offset == position.next:
            self.acked = position.next  # the last reader may have crashed before it stored this
        self.last_fetched = start.offset - 1
        self.is_validated = start.log_id.epoch is None
        self.start = start.offset

    @property
    def is_fetched(self) -> bool:
        """True if its messages are for the reader."""
        return self.start is not None and self.is_validated and self.is_assigned

    @property
    def coordinates_prefix(self) -> str:
        """The prefix of the coordinates of its messages."""
        return self.log_id.coordinates_prefix

    def _log(self, start: Start, position: Position) -> None:
        if start.warning:
            logger.warning("%s %s", self.name, start.warning)
        if start.skipped:
            logger.error(
                "%s: up to %s messages were deleted before they were read: the position is %s, "
                "but the log begins at offset %s; a longer retention of the topic (retention.ms, "
                "retention.bytes) prevents this",
                self.name,
                f"{start.skipped:,}",
                f"{position.next:,}",
                f"{start.offset:,}",
            )


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"
