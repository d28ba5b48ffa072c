"""Cluster: what brokers know of partitions and topics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from oncebox.sources.kafka.parts import Part
from oncebox.sources.kafka.settings import Settings
from oncebox.sources.kafka.starting import Facts

PATIENCE = 10.0
"""Seconds that brokers have for an answer."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker says that has no ids for topics."""


class Cluster:
    """Asks; KafkaException where nobody answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    def facts(self, consumer: Consumer, parts: Sequence[Part]) -> list[Facts]:
        """What there is to know of partitions before they are read."""
        partitions = [TopicPartition(part.topic, part.partition) for part in parts]
        committed = consumer.committed(partitions, timeout=PATIENCE)
        ids = self.topic_ids(sorted({part.topic for part in parts}))
        facts = []
        for partition, known in zip(partitions, committed, strict=True):
            if known.error is not None:
                raise KafkaException(known.error)
            bounds = consumer.get_watermark_offsets(partition, timeout=PATIENCE)
            if bounds is None:
                raise KafkaException("the offsets of a partition are not known")
            low, high = bounds
            offset = known.offset if known.offset >= 0 else None
            facts.append(Facts(low, high, offset, ids.get(partition.topic)))
        return facts

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The ids of topics, of those that have one."""
        if not topics:
            return {}
        if self._admin is None:
            self._admin = AdminClient(self._settings.connection)
        ids = {}
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=PATIENCE)
        for topic, answer in asked.items():
            with suppress(KafkaException):  # gone, or not ours to see
                found = str(answer.result(PATIENCE).topic_id)
                if found != NO_ID:
                    ids[topic] = found
        return ids
