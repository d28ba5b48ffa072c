"""Kafka: topics as a source. Each partition is a part, and the group says who reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from oncebox.errors import ConfigurationError
from oncebox.message import NO_HEADERS, Delivery, HeaderMap
from oncebox.outcome import Outcome
from oncebox.sources.contract import Batch, Features
from oncebox.sources.kafka.parts import Part, Parts
from oncebox.sources.kafka.settings import parse, settings_of
from oncebox.sources.kafka.starting import beginning
from oncebox.store.records import Gauge, Position

if TYPE_CHECKING:
    from confluent_kafka import Message

    from oncebox.sources.kafka.poller import Poller

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TOMBSTONE = b"null"
"""The body of a message that has no value: a handler whose payload may be None gets None."""


class KafkaSource:
    """`kafka://host:port[,host:port]/topic1,topic2?group=name`, and settings of librdkafka.

    The position in the inbox's database says what was handled. The offset in Kafka follows it.
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
            ordered=True,
            durable=True,
            positions=True,
            assigns=True,
            single="group.instance.id" in self._settings.client,
        )
        self._parts = Parts()
        self._poller: Poller | None = None

    @classmethod
    def of(cls, url: str) -> KafkaSource:
        """The source that a URL names."""
        servers, topics, group, settings = parse(url)
        return cls(servers, topics, group=group, settings=settings)

    def parts(self) -> Sequence[str]:
        self._started()
        return self._parts.wanted()

    def is_reassigned(self) -> bool:
        return self._parts.is_moved()

    def beginning(self, part: str) -> Position | None:
        found = self._parts.get(part)
        if found is None:  # it went in this moment
            return None
        position = beginning(part, found.facts, reset=self._settings.reset)
        if position is None:
            self._parts.despair(found)
        return position

    def open(self, position: Position) -> None:
        self._parts.open(position)

    def read(self, limit: int, seconds: float) -> Batch | None:
        self._started()
        taken = self._parts.take(limit, seconds)
        if taken is None:
            return None
        part, messages = taken
        old, part.next = part.next, (messages[-1].offset() or 0) + 1
        deliveries = [_delivery(part, message) for message in messages]
        return Batch(deliveries, part.name, old, part.next, part.mark)

    def settle(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        self._parts.settle(batch.part, batch.new)

    def gauge(self, part: str) -> Gauge:
        found = self._parts.get(part)
        if found is None:
            return Gauge()
        high = found.high
        # Marks of transactions have offsets too: at the end, nothing is left, whatever they say.
        at_end = not found.queue and found.end is not None and high == found.end
        lag = 0 if at_end else None if high is None else max(0, high - found.next)
        return Gauge(lag, found.settled)

    def release(self, part: str) -> None:
        if self._parts.release(part):
            self._started().rejoin()  # its position is to be looked up anew

    def is_finished(self, part: str, position: Position | None) -> bool:
        return False

    def keeps(self) -> timedelta | None:
        from oncebox.sources.kafka.cluster import Cluster

        topics = sorted({part.rpartition("/")[0] for part in self._parts.wanted()})
        return Cluster(self._settings).keeps(topics)

    def close(self) -> None:
        if self._poller is not None:
            self._poller.close()

    def _started(self) -> Poller:
        if self._poller is None:
            try:
                from oncebox.sources.kafka.poller import Poller
            except ImportError:
                raise ConfigurationError(
                    "Kafka needs confluent-kafka: pip install 'oncebox[kafka]'"
                ) from None
            self._poller = Poller(self._settings, self._parts, self.name)
            self._poller.start()
        return self._poller


def _delivery(part: Part, message: Message) -> Delivery:
    value = message.value()
    return Delivery(
        body=TOMBSTONE if value is None else value,
        headers=_headers(message),
        key=message.key(),
        source=part.topic,
        coordinates=f"{part.prefix}{part.partition}/{message.offset()}",
        timestamp=_timestamp(message),
    )


def _headers(message: Message) -> HeaderMap:
    """The headers; none where their names are no text, which the client does not hand over."""
    try:
        headers = message.headers()
    except (SystemError, UnicodeError):
        return NO_HEADERS
    return dict(headers) if headers else NO_HEADERS


def _timestamp(message: Message) -> datetime | None:
    """The broker's time, as far as it is one."""
    kind, milliseconds = message.timestamp()
    try:
        return EPOCH + timedelta(milliseconds=milliseconds) if kind else None
    except OverflowError:
        return None
