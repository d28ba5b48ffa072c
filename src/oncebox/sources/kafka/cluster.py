"""Cluster: what brokers know of partitions and topics."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from oncebox import reports
from oncebox.sources.kafka.parts import Part
from oncebox.sources.kafka.settings import Settings
from oncebox.sources.kafka.starting import Facts, longest

PATIENCE = 5.0
"""Seconds that brokers have for an answer."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker says that has no ids for topics."""

NAMELESS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}
"""Why a topic has no id: it is gone, or not ours to see, or the broker is too old."""

Question = dict[str, "Future[Any]"]


class Cluster:
    """Asks brokers; raises KafkaException where nobody answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None

    def forget(self) -> None:
        """Start with a new client: an old one may go on asking a broker that is gone."""
        self._client = None

    def facts(self, consumer: Consumer, parts: Sequence[Part]) -> list[Facts]:
        """What there is to know of partitions before they are read."""
        partitions = [TopicPartition(part.topic, part.partition) for part in parts]
        committed = consumer.committed(partitions, timeout=PATIENCE)
        for known in committed:
            if known.error is not None:
                raise KafkaException(known.error)
        ids = self._ids(sorted({part.topic for part in parts}))
        lows = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        highs = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return [
            Facts(low, high, known.offset if known.offset >= 0 else None, ids.get(known.topic))
            for low, high, known in zip(lows, highs, committed, strict=True)
        ]

    def _ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The ids of topics, as far as anybody tells them now: they are asked for again later."""
        try:
            return topic_ids(self.ask(topics))
        except KafkaException:
            self.forget()
            return {}

    def keeps(self, topics: Sequence[str]) -> timedelta | None:
        """For how long the longest of these topics keeps messages; None where nobody tells."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        asked = self._admin.describe_configs(wanted, request_timeout=PATIENCE)
        return longest([_entries(answer) for answer in asked.values()])

    def ask(self, topics: Sequence[str]) -> Question:
        """Ask for the ids of topics; the answer comes when it comes."""
        if not topics:
            return {}
        question: Question = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=PATIENCE
        )
        return question

    def _offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> list[int | None]:
        """The first or last offset of each partition; None for those without a leader."""
        asked = self._admin.list_offsets(
            dict.fromkeys(partitions, spec),
            # The end is the end, though a transaction is open before it.
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=PATIENCE,
        )
        answers = {(p.topic, p.partition): answer for p, answer in asked.items()}
        return [_offset(answers[p.topic, p.partition]) for p in partitions]

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            logger = reports.logger.getChild("librdkafka")
            self._client = AdminClient(self._settings.connection, logger=logger)
        return self._client


def _entries(answer: Future[Any]) -> dict[str, str]:
    try:
        found = answer.result(2 * PATIENCE)
    except (KafkaException, TimeoutError):  # it is not ours to see
        return {}
    return {name: str(entry.value) for name, entry in found.items()}


def _offset(answer: Future[Any]) -> int | None:
    try:
        offset: int = answer.result(2 * PATIENCE).offset
    except (KafkaException, TimeoutError):
        return None
    return offset if offset >= 0 else None


def is_answered(question: Question) -> bool:
    return all(answer.done() for answer in question.values())


def topic_ids(question: Question) -> dict[str, str]:
    """The ids of topics, of those that have one."""
    ids = {}
    for topic, answer in question.items():
        try:
            found = str(answer.result(2 * PATIENCE).topic_id)
        except TimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        except KafkaException as error:
            if error.args[0].code() not in NAMELESS:
                raise
            continue
        if found != NO_ID:
            ids[topic] = found
    return ids
