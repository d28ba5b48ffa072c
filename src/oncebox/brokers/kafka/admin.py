"""Requests to the brokers about topics and partitions: offsets, topic ids, retention."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import msgspec
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from oncebox.brokers.kafka.partition import Partition
from oncebox.brokers.kafka.settings import Settings
from oncebox.brokers.kafka.start_offset import Facts, Signature, longest_retention

logger = logging.getLogger("oncebox")

TIMEOUT = 5.0
"""Seconds that brokers have to respond."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that a broker without topic ids reports."""

NO_ID_ERRORS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}
"""Errors after which a topic counts as one without an id: it is deleted, access is denied, or the
broker is too old."""

TopicRequests = dict[str, "Future[Any]"]
"""The pending description of each topic."""


class Probe(msgspec.Struct, frozen=True):
    """Pending requests that are repeated while partitions are read."""

    topics: TopicRequests
    """The ids of the topics."""
    ends: Mapping[tuple[str, int], Future[Any]]
    """The end of each partition."""
    cluster: Future[Any] | None
    """The description of the cluster; only requested while no partition is assigned."""

    @property
    def is_complete(self) -> bool:
        """True if every request is answered or failed."""
        return all(request.done() for request in self._requests)

    @property
    def is_answered(self) -> bool:
        """True if any broker answered, even with an error."""
        return any(_is_answered(request) for request in self._requests)

    @property
    def _requests(self) -> list[Future[Any]]:
        cluster = [] if self.cluster is None else [self.cluster]
        return [*self.topics.values(), *self.ends.values(), *cluster]

    def end(self, partition: Partition) -> int | None:
        """Return the end of a partition; None if its leader did not answer."""
        request = self.ends.get((partition.topic, partition.partition))
        return None if request is None else _offset(request)


class Cluster:
    """Sends requests to the brokers; raises KafkaException if none answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None

    def reset(self) -> None:
        """Use a new client from now on. The old one may send requests to a stopped broker."""
        self._client = None

    def facts(self, consumer: Consumer, partitions: Sequence[Partition]) -> list[Facts]:
        """Return what the brokers report about partitions before they are read."""
        at = _topic_partitions(partitions)
        committed = consumer.committed(at, timeout=TIMEOUT)
        for known in committed:
            if known.error is not None:
                raise KafkaException(known.error)
        ids = self._topic_ids(sorted({partition.topic for partition in partitions}))
        lows = self._offsets(at, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        highs = self._offsets(at, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return [
            Facts(low, high, *_committed(known), topic_id=ids.get(known.topic))
            for low, high, known in zip(lows, highs, committed, strict=True)
        ]

    def _topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the current ids of topics; a probe requests them again later."""
        try:
            return topic_ids(self._describe(topics))
        except KafkaException:
            self.reset()
            return {}

    def retention(self, topics: Sequence[str]) -> timedelta | None:
        """Return the longest retention of topics; None if it is unknown."""
        if not topics:  # all partitions were revoked just now
            return None
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        requests = self._admin.describe_configs(wanted, request_timeout=TIMEOUT)
        return longest_retention([_entries(request) for request in requests.values()])

    def probe(self, partitions: Sequence[Partition]) -> Probe:
        """Request what may change while partitions are read, without waiting for the answers."""
        topics = self._describe(sorted({partition.topic for partition in partitions}))
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = self._list_offsets(_topic_partitions(partitions), latest) if partitions else {}
        cluster = None if partitions else self._admin.describe_cluster(request_timeout=TIMEOUT)
        return Probe(topics, ends, cluster)

    def _describe(self, topics: Sequence[str]) -> TopicRequests:
        """Request the descriptions of topics, without waiting for the answers."""
        if not topics:
            return {}
        requests: TopicRequests = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=TIMEOUT
        )
        return requests

    def _offsets(self, at: list[TopicPartition], spec: OffsetSpec) -> list[int | None]:
        """Return the first or last offset of each partition; None for those without a leader."""
        requests = self._list_offsets(at, spec)
        return [_offset(requests[p.topic, p.partition]) for p in at]

    def _list_offsets(
        self, at: list[TopicPartition], spec: OffsetSpec
    ) -> dict[tuple[str, int], Future[Any]]:
        requests = self._admin.list_offsets(
            dict.fromkeys(at, spec),
            # The end of the log counts, also if a transaction is open before it.
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=TIMEOUT,
        )
        return {(p.topic, p.partition): request for p, request in requests.items()}

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            client_logger = logger.getChild("librdkafka")
            self._client = AdminClient(self._settings.connection, logger=client_logger)
        return self._client


def topic_ids(requests: TopicRequests) -> dict[str, str]:
    """Return the ids of the topics that have one."""
    ids = {}
    for topic, request in requests.items():
        try:
            found = str(request.result(2 * TIMEOUT).topic_id)
        except TimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        except KafkaException as error:
            if error.args[0].code() not in NO_ID_ERRORS:
                raise
            continue
        if found != NO_ID:
            ids[topic] = found
    return ids


def _topic_partitions(partitions: Sequence[Partition]) -> list[TopicPartition]:
    return [TopicPartition(partition.topic, partition.partition) for partition in partitions]


def _committed(known: TopicPartition) -> tuple[int | None, Signature | None]:
    if known.offset < 0:
        return None, None
    try:
        return known.offset, Signature.of(known.metadata)
    except UnicodeDecodeError:  # another program wrote it
        return known.offset, None


def _entries(request: Future[Any]) -> dict[str, str]:
    try:
        found = request.result(2 * TIMEOUT)
    except (KafkaException, TimeoutError):  # access may be denied
        return {}
    return {name: str(entry.value) for name, entry in found.items()}


def _offset(request: Future[Any]) -> int | None:
    try:
        offset: int = request.result(2 * TIMEOUT).offset
    except (KafkaException, TimeoutError):
        return None
    return offset if offset >= 0 else None


def _is_answered(request: Future[Any]) -> bool:
    error = request.exception()
    if isinstance(error, KafkaException):
        code: int = error.args[0].code()  # negative codes are errors of the client itself
        return code > 0 and code != KafkaError.SASL_AUTHENTICATION_FAILED
    return error is None
