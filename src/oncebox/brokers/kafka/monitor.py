"""Periodic checks of the cluster: whether brokers answer, partition ends, recreated topics."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException

from oncebox.brokers.kafka.admin import Probe, topic_ids
from oncebox.brokers.kafka.session import Session


class Monitor:
    """Sends a probe to the brokers and records its answers. It never waits for them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._assignment = session.assignment
        self._cluster = session.cluster
        self._probe: Probe | None = None
        self._probed_at = 0.0

    def check(self) -> None:
        """Record the answers of the last probe, and send the next one."""
        if self._probe is not None and self._probe.is_complete:
            if self._probe.is_answered:
                self._session.availability.answered()
            else:
                self._cluster.reset()
            self._record_ends(self._probe)
            self._compare_topics(self._probe)
            self._probe = None
        if self._probe is None:
            self._probed_at = time.monotonic()
            self._probe = self._cluster.probe(self._assignment.all())

    def _record_ends(self, probe: Probe) -> None:
        for partition in self._assignment.all():
            if (end := probe.end(partition)) is not None:
                partition.high, partition.measured_at = end, self._probed_at

    def _compare_topics(self, probe: Probe) -> None:
        """Rejoin if a topic was deleted and created again."""
        partitions = self._assignment.all()
        known = {p.topic: p.facts.topic_id for p in partitions if p.start is not None}
        try:
            now = topic_ids(probe.topics)
        except KafkaException:
            self._cluster.reset()
            return
        if any(now.get(topic, old) != old for topic, old in known.items()):
            self._session.rejoin.request()
