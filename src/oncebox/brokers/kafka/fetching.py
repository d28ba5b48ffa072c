"""Control of the Kafka client: pause and resume, validation of offsets, offsets to commit."""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from oncebox.brokers.kafka.client_errors import error_text
from oncebox.brokers.kafka.partition import Partition, partition_name
from oncebox.brokers.kafka.session import Session
from oncebox.brokers.kafka.start_offset import Signature

NO_EPOCH = -1
"""librdkafka's value for an unknown leader epoch."""


class Fetching:
    """Controls what the client fetches and commits. Only the poller thread uses it."""

    def __init__(self, client: Consumer, session: Session) -> None:
        self._client = client
        self._session = session
        self._assignment = session.assignment
        self.is_paused: bool | None = None
        """True if the partitions are paused; None if only some of them may be."""

    def assign(self, partitions: list[Partition]) -> None:
        """Fetch newly assigned partitions; pause those that cannot be read at present."""
        assigned = [_assigned(partition) for partition in partitions]
        is_incremental = self._session.settings.is_incremental
        (self._client.incremental_assign if is_incremental else self._client.assign)(assigned)
        self.validate()
        self.is_paused = None
        idle = [a for a, p in zip(assigned, partitions, strict=True) if p.start is None]
        if idle:
            self._client.pause(idle)

    def validate(self) -> None:
        """Let librdkafka compare the leader epochs of start offsets with the log.

        It does so when it seeks, and not when a partition is assigned. A partition that it does
        not fetch yet refuses to seek. The next turn then tries again, and its messages are dropped
        until then.
        """
        for partition in self._assignment.all():
            if not partition.is_validated:
                try:
                    self._client.seek(_assigned(partition))
                    partition.is_validated = True
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._STATE:
                        text = error_text(error.args[0])
                        self._session.log.warn(
                            "seek",
                            f"{partition.name}: cannot validate the start offset, trying again: "
                            f"{text}",
                        )

    def set_paused(self, paused: bool) -> None:
        """Pause or resume all partitions that can be read."""
        if paused == self.is_paused:
            return
        self.is_paused = paused
        with suppress(KafkaException):
            readable = [p for p in self._client.assignment() if self._is_readable(p)]
            (self._client.pause if paused else self._client.resume)(readable)

    def _is_readable(self, at: TopicPartition) -> bool:
        partition = self._assignment.get(partition_name(at.topic, at.partition))
        return partition is not None and partition.start is not None

    def store_offsets(self) -> None:
        """Hand acked offsets to librdkafka, which commits them every few seconds."""
        for partition, offset, position in self._assignment.offsets_to_store():
            log_id = partition.log_id
            signature = str(Signature(log_id.version, position, log_id.first_offset))
            stored = TopicPartition(partition.topic, partition.partition, offset, signature)
            # librdkafka refuses offsets of partitions that were revoked meanwhile.
            with suppress(KafkaException):
                self._client.store_offsets(offsets=[stored])


def _assigned(partition: Partition) -> TopicPartition:
    """Return a partition to fetch, with the leader epoch by which the offset is validated."""
    if partition.start is None:
        return TopicPartition(partition.topic, partition.partition, 0)
    epoch = NO_EPOCH if partition.log_id.epoch is None else partition.log_id.epoch
    return TopicPartition(partition.topic, partition.partition, partition.start, leader_epoch=epoch)
