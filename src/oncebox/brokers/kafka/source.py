"""KafkaSource: Kafka topics as a partitioned source."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from oncebox.brokers.contract import Batch, Features
from oncebox.brokers.kafka import conversion
from oncebox.brokers.kafka.assignment import Assignment
from oncebox.brokers.kafka.partition import Partition
from oncebox.brokers.kafka.settings import parse, settings_of
from oncebox.brokers.kafka.start_offset import initial_position
from oncebox.errors import ConfigurationError
from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome
from oncebox.model.position import Gauge, Position

logger = logging.getLogger("oncebox")

if TYPE_CHECKING:
    from confluent_kafka import Message

    from oncebox.brokers.kafka.poller import Poller


class KafkaSource:
    """`kafka://host:port[,host:port]/topic1,topic2?group=name`, and settings of librdkafka.

    The position in the inbox's database decides what is read. The offset in Kafka follows it.
    """

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        *,
        group: str,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings_of(servers, list(topics), group, settings or {})
        self.name = f"kafka:{group}"
        self.features = Features(
            order="partition",
            durable=True,
            assigns=True,
            single="group.instance.id" in self._settings.client,
        )
        self._assignment = Assignment()
        self._poller: Poller | None = None

    @classmethod
    def of(cls, url: str) -> KafkaSource:
        """Return the source that a URL names."""
        servers, topics, group, settings = parse(url)
        return cls(servers, topics, group=group, settings=settings)

    def partitions(self) -> Sequence[str]:
        self._started()
        return self._assignment.assigned()

    def is_reassigned(self) -> bool:
        return self._assignment.is_reassigned()

    def start_position(self, partition: str) -> Position | None:
        found = self._assignment.get(partition)
        if found is None:  # it was revoked just now
            return None
        start = initial_position(partition, found.facts, reset=self._settings.reset)
        if start is None:
            self._assignment.mark_unavailable(found)
            return None
        logger.log(
            logging.ERROR if start.is_loss else logging.INFO,
            "%s has no position yet; reading it from offset %s (%s)",
            partition,
            f"{start.position.next:,}",
            start.why,
        )
        return start.position

    def open(self, position: Position) -> None:
        self._assignment.open(position)

    def read(self, limit: int, seconds: float) -> Batch | None:
        self._started()
        taken = self._assignment.take(limit, seconds)
        if taken is None:
            return None
        partition, messages = taken
        if partition.skipped:
            return _gap(partition)
        if partition.suspects:
            return _suspect(partition, messages)
        return _batch(partition, messages, _deliveries(partition, messages))

    def ack(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        self._assignment.ack(batch.partition, batch.new)

    def nack(self, batch: Batch) -> None:
        self.release(batch.partition)

    def extend(self, batch: Batch) -> None:
        """The poller thread keeps partitions assigned, however long a batch takes."""

    def gauge(self, partition: str) -> Gauge:
        found = self._assignment.get(partition)
        if found is None:
            return Gauge()
        high = found.high
        # Transaction markers have offsets too, but they are not messages that wait.
        at_end = not found.queue and found.end is not None and high == found.end
        lag = 0 if at_end else None if high is None else max(0, high - found.next)
        return Gauge(lag, found.committed, monotonic() - found.measured_at)

    def trouble(self) -> str | None:
        return self._started().trouble()

    def release(self, partition: str) -> None:
        if self._assignment.release(partition):
            self._started().rejoin()  # so that its position is looked up again

    def is_finished(self, partition: str, position: Position | None) -> bool:
        return False

    def retention(self) -> timedelta | None:
        from oncebox.brokers.kafka.admin import Cluster

        topics = sorted({name.rpartition("/")[0] for name in self._assignment.assigned()})
        return Cluster(self._settings).retention(topics)

    def close(self) -> None:
        if self._poller is not None:
            self._poller.close()

    def _started(self) -> Poller:
        if self._poller is None:
            try:
                from oncebox.brokers.kafka.poller import Poller
            except ImportError:
                raise ConfigurationError(
                    "a Kafka source needs confluent-kafka: pip install 'oncebox[kafka]'"
                ) from None
            self._poller = Poller(self._settings, self._assignment, self.name)
            self._poller.start()
        return self._poller


def _batch(
    partition: Partition, messages: Sequence[Message], deliveries: Sequence[Delivery]
) -> Batch:
    last = messages[-1]
    old, partition.next = partition.next, (last.offset() or 0) + 1
    log_id = msgspec.structs.replace(partition.log_id, epoch=last.leader_epoch())
    return Batch(deliveries, partition.name, old, partition.next, str(log_id))


def _suspect(partition: Partition, messages: Sequence[Message]) -> Batch:
    """Return one message that may crash the process; the consumer converts it."""
    partition.suspects -= 1
    known = [conversion.crashing(partition, message) for message in messages]
    convert = partial(_deliveries, partition, messages)
    return msgspec.structs.replace(_batch(partition, messages, known), convert=convert)


def _gap(partition: Partition) -> Batch:
    """Return the step over messages that were deleted."""
    old, partition.next = partition.next, partition.start or 0
    count, partition.skipped = partition.skipped, 0
    return Batch((), partition.name, old, partition.next, str(partition.log_id), skipped=count)


def _deliveries(partition: Partition, messages: Sequence[Message]) -> list[Delivery]:
    return [conversion.delivery(partition, message) for message in messages]
