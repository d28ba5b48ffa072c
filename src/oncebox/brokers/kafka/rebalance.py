"""Rebalances of the consumer group: what happens when partitions are assigned, revoked or lost.

When a partition is assigned, the poller waits until the reader has found its position in the
database, and fetches from there. When a partition is revoked, the poller waits until the reader has
released it, so that no batch is in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from oncebox.brokers.kafka.client_errors import error_text
from oncebox.brokers.kafka.fetching import Fetching
from oncebox.brokers.kafka.monitor import Monitor
from oncebox.brokers.kafka.partition import Partition, partition_name
from oncebox.brokers.kafka.session import Session
from oncebox.brokers.kafka.start_offset import Facts, is_beyond, start_at
from oncebox.model.position import Position

logger = logging.getLogger("oncebox")

TIMEOUT = 30.0
"""Seconds that the reader has to finish a batch of a revoked partition, or to find the position of
an assigned one."""

CHECK_EVERY = 1.0
"""Seconds between two checks of the cluster while the poller waits for the reader."""


class Rebalance:
    """The callbacks of a rebalance. librdkafka calls them on the poller thread."""

    def __init__(self, session: Session, fetching: Fetching, monitor: Monitor) -> None:
        self._session = session
        self._assignment = session.assignment
        self._fetching = fetching
        self._monitor = monitor
        self._timeout = min(TIMEOUT, 0.5 * session.settings.poll_interval)
        self._refused: dict[str, tuple[Position, int | None]] = {}
        """Positions that brokers refused, each with the offset of the truncation."""

    # -- assigned ---------------------------------------------------------------------------------

    def on_assign(self, client: Consumer, assigned: list[TopicPartition]) -> None:
        if not assigned:
            return
        partitions = [Partition(p.topic, p.partition) for p in assigned]
        is_open = self._find_facts(client, partitions) and self._open(client, partitions)
        self._fetching.assign(partitions)
        self._log("reads", [p for p in partitions if p.start is not None])
        idle = [p for p in partitions if p.start is None]
        was_refused = self._session.availability.admitted()
        if is_open and not idle:
            if not was_refused:  # else the pause before the next rejoin keeps growing
                self._session.rejoin.succeeded()
        elif not self._assignment.is_closing:
            names = ", ".join(p.name for p in idle)
            self._session.log.warn(
                "assign",
                f"cannot read {names} now: a partition has no leader, brokers or the database do "
                "not answer, or handlers are slow; trying again",
            )
            self._session.rejoin.request()

    def _find_facts(self, client: Consumer, partitions: list[Partition]) -> bool:
        """Query the brokers about partitions until they answer. Returns False after the timeout."""
        deadline = time.monotonic() + self._timeout
        while not self._assignment.is_closing and time.monotonic() < deadline:
            try:
                facts = self._session.cluster.facts(client, partitions)
            except KafkaException as error:
                text = f"brokers do not answer: {error_text(error.args[0])}"
                self._session.log.warn("facts", text)
                self._session.cluster.reset()
                self._assignment.wait(lambda: False, 1.0)
            else:
                self._session.availability.answered()
                for partition, fact in zip(partitions, facts, strict=True):
                    partition.facts = fact
                return True
        return False

    def _open(self, client: Consumer, partitions: list[Partition]) -> bool:
        """Let the reader find the position of each partition, and start there."""
        self._assignment.add(partitions)
        found = self._wait(lambda: all(p.position or p.is_unavailable for p in partitions))
        if not found:
            self._assignment.remove(self._assignment.revoke([p.name for p in partitions]))
            return False
        at = [(p, p.position) for p in partitions if p.position is not None]
        # Another worker may have advanced the position since the brokers reported the end.
        stale = [p for p, position in at if is_beyond(position, p.facts)]
        if stale and not self._find_facts(client, stale):
            return False
        for partition, position in at:
            start = start_at(position, self._facts_with_refusal(partition, position))
            partition.begin(start, position)
        return True

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for the reader, and check the cluster meanwhile: a slow reader is not an outage."""
        deadline = time.monotonic() + self._timeout
        while not self._assignment.wait(condition, CHECK_EVERY):
            if self._assignment.is_closing or time.monotonic() > deadline:
                return False
            self._monitor.check()
        return True

    def refused(self, partition: Partition, truncated_at: int | None) -> None:
        """Record that brokers refused a position; the next assignment takes it into account."""
        if partition.position is not None:
            self._refused[partition.name] = (partition.position, truncated_at)

    def _facts_with_refusal(self, partition: Partition, position: Position) -> Facts:
        refused, truncated_at = self._refused.pop(partition.name, (None, None))
        if refused is None or (refused.next, refused.log_id) != (position.next, position.log_id):
            return partition.facts
        return msgspec.structs.replace(partition.facts, truncated_at=truncated_at, is_refused=True)

    # -- revoked and lost -------------------------------------------------------------------------

    def on_revoke(self, client: Consumer, revoked: list[TopicPartition]) -> None:
        partitions = self._assignment.revoke(_names(revoked))
        is_released = self._wait(lambda: all(p.position is None for p in partitions))
        if not is_released and not self._assignment.is_closing:
            names = ", ".join(p.name for p in partitions if p.position is not None)
            self._session.log.warn(
                "revoke",
                f"a batch of {names} was not finished within {self._timeout:.0f} s; its commit is "
                "refused once another worker reads the partition",
            )
        self._fetching.store_offsets()  # librdkafka commits them with the revocation
        self._assignment.remove(partitions)
        self._log("released", partitions)

    def on_lost(self, client: Consumer, lost: list[TopicPartition]) -> None:
        partitions = self._assignment.revoke(_names(lost))
        self._assignment.remove(partitions)
        self._log("lost (the session in the group expired, or the topic was deleted):", partitions)

    def _log(self, event: str, partitions: Iterable[Partition]) -> None:
        if names := ", ".join(sorted(partition.name for partition in partitions)):
            logger.info("%s: %s %s", self._session.name, event, names)


def _names(partitions: list[TopicPartition]) -> list[str]:
    return [partition_name(p.topic, p.partition) for p in partitions]
