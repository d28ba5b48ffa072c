"""Poller: the thread that owns the Kafka client, fetches messages and commits offsets.

The thread polls all the time, however slow handlers are, so that the group does not remove this
consumer. Fetched messages go to the Assignment, where the reader takes them.
"""

from __future__ import annotations

import logging
import time
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from oncebox.brokers.kafka.assignment import Assignment
from oncebox.brokers.kafka.client_errors import (
    ACCESS_ERRORS,
    REBALANCE_ERRORS,
    error_text,
    is_fatal,
    truncation_offset,
)
from oncebox.brokers.kafka.fetching import Fetching
from oncebox.brokers.kafka.monitor import Monitor
from oncebox.brokers.kafka.partition import partition_name
from oncebox.brokers.kafka.rebalance import CHECK_EVERY, TIMEOUT, Rebalance
from oncebox.brokers.kafka.session import Session
from oncebox.brokers.kafka.settings import Settings
from oncebox.errors import ConfigurationError, OnceboxError

logger = logging.getLogger("oncebox")

POLL_TIMEOUT = 0.1
"""Seconds that one poll waits for the first message."""

PAUSE_AFTER = 0.5
"""Seconds with a full buffer after which partitions are paused. Not at once, because librdkafka
drops the messages that it has fetched of a paused partition."""


class Poller:
    """Fills the assignment with messages, on a thread of its own."""

    def __init__(self, settings: Settings, assignment: Assignment, name: str) -> None:
        self._session = Session(settings, assignment, name)
        self._assignment = assignment
        self._checked_at = time.monotonic()
        self._warned_of: tuple[str, float] | None = None
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        self._client = _client({**settings.client, **callbacks})
        self._monitor = Monitor(self._session)
        self._fetching = Fetching(self._client, self._session)
        self._rebalance = Rebalance(self._session, self._fetching, self._monitor)
        self._thread = Thread(target=self._run, name="oncebox-kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Commit acked offsets and leave the group."""
        self._assignment.close()
        self._thread.join(TIMEOUT)

    def rejoin(self) -> None:
        """Leave the group and join it again, so that every position is looked up again."""
        self._session.rejoin.request()

    def trouble(self) -> str | None:
        """Return why the topics cannot be read now, or None if they can."""
        return self._session.availability.trouble(self._assignment.all())

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._join()
            while not self._assignment.is_closing:
                self._turn()
        except BaseException as error:
            self._assignment.fail(error)
        finally:
            self._fetching.store_offsets()
            self._client.close()
            self._session.cluster.reset()

    def _join(self) -> None:
        self._client.subscribe(
            list(self._session.settings.topics),
            on_assign=self._rebalance.on_assign,
            on_revoke=self._rebalance.on_revoke,
            on_lost=self._rebalance.on_lost,
        )

    def _turn(self) -> None:
        self._leave_and_join()
        self._fetching.validate()
        space = self._assignment.free_space(PAUSE_AFTER)
        self._fetching.set_paused(not space)
        # Wait for the first message only: the others are fetched already, or come later.
        self._accept(self._client.consume(1, POLL_TIMEOUT))
        if space > 1:
            self._accept(self._client.consume(space - 1, 0))
        self._fetching.store_offsets()
        if time.monotonic() - self._checked_at > CHECK_EVERY:
            self._checked_at = time.monotonic()
            self._warn_of_slow_batch()
            self._monitor.check()

    def _leave_and_join(self) -> None:
        """Rejoin in two polls: subscribing before everything is revoked keeps some partitions."""
        rejoin = self._session.rejoin
        if rejoin.is_due() and self._assignment.in_flight() is None:
            rejoin.begin()
            self._client.unsubscribe()
        elif rejoin.is_leaving and not self._client.assignment():
            rejoin.end()
            self._join()

    def _accept(self, messages: list[Message]) -> None:
        good = [message for message in messages if message.error() is None]
        if good:
            self._assignment.buffer(good)
        for message in messages:
            if (error := message.error()) is not None:
                self._on_message_error(message, error)

    def _warn_of_slow_batch(self) -> None:
        """Warn once of a batch that takes longer than Kafka would wait for a poll."""
        in_flight = self._assignment.in_flight()
        if in_flight is None or in_flight == self._warned_of:
            return
        name, since = in_flight
        seconds = time.monotonic() - since
        if seconds >= self._session.settings.poll_interval:
            self._warned_of = in_flight
            logger.warning(
                "%s: a batch of %s has been in flight for %.0f seconds (max.poll.interval.ms): its "
                "handlers are slow or hang, or the database does not answer. The partition stays "
                "assigned; if handlers are slow, use a smaller --batch",
                self._session.name,
                name,
                seconds,
            )

    # -- errors and commits -----------------------------------------------------------------------

    def _on_message_error(self, message: Message, error: KafkaError) -> None:
        name = partition_name(message.topic() or "", message.partition() or 0)
        partition = self._assignment.get(name)
        if error.code() == KafkaError._PARTITION_EOF:
            if partition is not None:
                self._assignment.reached_end(partition, message.offset() or 0)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            if partition is not None:
                self._rebalance.refused(partition, truncation_offset(error))
            self.rejoin()  # the next assignment starts the partition at another offset
        else:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        text = error_text(error)
        if is_fatal(error):
            name = self._session.name
            self._assignment.fail(OnceboxError(f"{name}: the Kafka client cannot continue: {text}"))
        self._session.availability.failed(text)
        if error.code() in ACCESS_ERRORS:
            self._session.availability.refused(text)
            if self._assignment.all():
                self.rejoin()  # only an assignment shows that access is granted again
        self._session.log.warn(error.code(), text)

    def _on_commit(self, error: KafkaError | None, committed: list[TopicPartition]) -> None:
        if error is not None:
            if error.code() not in REBALANCE_ERRORS:
                text = f"offsets could not be committed: {error_text(error)}"
                self._session.log.warn("commit", text)
            return
        for known in committed:
            partition = self._assignment.get(partition_name(known.topic, known.partition))
            if partition is not None and known.error is None and known.offset >= 0:
                partition.committed = known.offset


def _client(settings: dict[str, Any]) -> Consumer:
    try:
        return Consumer(settings, logger=logger.getChild("librdkafka"))
    except KafkaException as error:
        text = error_text(error.args[0])
        raise ConfigurationError(
            f"the Kafka client refuses a setting (from the URL or ONCEBOX_KAFKA_*): {text}"
        ) from None
