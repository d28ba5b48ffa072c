"""Poller: the thread that asks Kafka for messages, and answers it when partitions come and go.

Nobody else touches the client.
It never stops asking, however slow handlers are, so that the group does not give up on us. When a
partition comes, it waits until the reader has found its position in the database, and fetches from
there. When one is to go, it waits until the reader has let go of it, so that nothing is in hands.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from oncebox import reports
from oncebox.errors import ConfigurationError, OnceboxError
from oncebox.sources.kafka.cluster import Cluster
from oncebox.sources.kafka.parts import Part, Parts, part_name
from oncebox.sources.kafka.settings import Settings

LOOK = 0.1
"""Seconds that Kafka is asked for the first of some messages."""

SLOW = 0.5
"""Seconds without room after which partitions are paused. Not at once: what librdkafka has fetched
of a paused partition, it forgets."""

DRAIN = 30.0
"""Seconds that a batch in hands has to be finished when its partition goes."""

LOOK_AROUND = 1.0
"""Seconds between two looks at what is not urgent."""

COMPARE_EVERY = 5.0
"""Seconds between two looks whether topics are still the same ones."""

REPEAT = 60.0
"""Seconds within which the same complaint is not repeated."""


class Poller:
    """Keeps parts filled."""

    def __init__(self, settings: Settings, parts: Parts, name: str) -> None:
        self._settings = settings
        self._parts = parts
        self._name = name
        self._cluster = Cluster(settings)
        self._paused = False
        self._rejoining = False
        self._complaints: dict[Any, float] = {}
        self._compared_at = self._looked_at = time.monotonic()
        self._warned: set[tuple[str, float]] = set()
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        self._consumer = self._made({**settings.client, **callbacks})
        self._thread = Thread(target=self._run, name="oncebox-kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Leave the group. What was settled is committed."""
        self._parts.close()
        self._thread.join(DRAIN)

    def rejoin(self) -> None:
        """Leave the group and join it again, so that every position is looked up anew."""
        self._rejoining = True

    def _made(self, client: dict[str, Any]) -> Consumer:
        try:
            return Consumer(client, logger=reports.logger.getChild("librdkafka"))
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {_text(error.args[0])}") from None

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._join()
            while not self._parts.is_closing:
                self._turn()
        except BaseException as error:
            self._parts.fail(error)
        finally:
            self._store_offsets()
            self._consumer.close()

    def _join(self) -> None:
        self._consumer.subscribe(
            list(self._settings.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _turn(self) -> None:
        if self._rejoining:
            self._rejoining = False
            self._consumer.unsubscribe()
            self._join()
        room = self._parts.room(SLOW)
        self._set_paused(not room)
        # The first one is waited for, the others are there already or come later.
        messages = self._consumer.consume(1, LOOK)
        if messages and room > 1:
            messages += self._consumer.consume(room - 1, 0)
        good = [m for m in messages if m.error() is None]
        if len(good) < len(messages):
            self._look_at([m for m in messages if m.error() is not None])
        if good:
            self._parts.fill(good)
        self._store_offsets()
        if time.monotonic() - self._looked_at > LOOK_AROUND:
            self._looked_at = time.monotonic()
            self._find_ends()
            self._watch_hands()
            self._compare_topics()

    def _store_offsets(self) -> None:
        """What was settled is to be committed; librdkafka does so every few seconds."""
        for part in self._parts.all():
            offset = part.handled
            if offset is None or offset == part.stored:
                continue
            part.stored = offset
            # A partition that is not ours any more refuses it, and rightly so.
            with suppress(KafkaException):
                stored = TopicPartition(part.topic, part.partition, offset)
                self._consumer.store_offsets(offsets=[stored])

    def _find_ends(self) -> None:
        """Note how long partitions are, as the last fetch said it."""
        for part in self._parts.all():
            with suppress(KafkaException):
                partition = TopicPartition(part.topic, part.partition)
                bounds = self._consumer.get_watermark_offsets(partition, cached=True)
                if bounds is not None and bounds[1] >= 0:
                    part.high = bounds[1]

    def _set_paused(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        with suppress(KafkaException):
            ours = self._consumer.assignment()
            (self._consumer.pause if paused else self._consumer.resume)(ours)

    def _compare_topics(self) -> None:
        """A topic of the same name may be another one by now."""
        if time.monotonic() - self._compared_at < COMPARE_EVERY:
            return
        self._compared_at = time.monotonic()
        known = {p.topic: p.facts.topic_id for p in self._parts.all() if p.facts and p.is_open}
        now = self._cluster.topic_ids(list(known))
        if any(now.get(topic, old) != old for topic, old in known.items()):
            self.rejoin()

    def _watch_hands(self) -> None:
        """Say once of each batch that it takes longer than Kafka would wait for us."""
        limit = self._settings.poll_interval
        for part in self._parts.all():
            since = part.handed_at
            if since is None or time.monotonic() - since < limit:
                continue
            if (part.name, since) not in self._warned:
                self._warned = {(part.name, since)}
                reports.logger.warning(
                    "%s: a batch of %s has been in hands for %.0f seconds (max.poll.interval.ms): "
                    "its handlers are slow, or hang. The partition stays ours meanwhile",
                    self._name,
                    part.name,
                    time.monotonic() - since,
                )

    # -- partitions come and go -------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        parts = [Part(p.topic, p.partition) for p in partitions]
        deadline = time.monotonic() + 0.8 * self._settings.poll_interval
        ready = self._find_facts(parts, deadline) and self._wait_for_positions(parts, deadline)
        if not ready:
            self._parts.remove(parts)
            parts = []
            if not self._parts.is_closing:
                self._complain("assign", "partitions could not be opened in time; joining again")
                self.rejoin()
        assigned = [TopicPartition(p.topic, p.partition, p.start or 0) for p in parts]
        (consumer.incremental_assign if self._settings.is_incremental else consumer.assign)(
            assigned
        )
        self._paused = False
        if parts:
            self._say("reads", parts)

    def _find_facts(self, parts: list[Part], deadline: float) -> bool:
        """Ask the brokers about partitions, until they answer."""
        while not self._parts.is_closing:
            try:
                facts = self._cluster.facts(self._consumer, parts)
            except KafkaException as error:
                self._complain("facts", f"brokers do not answer: {_text(error.args[0])}")
                if time.monotonic() > deadline:
                    break
                self._parts.wait(lambda: False, 1.0)
            else:
                for part, fact in zip(parts, facts, strict=True):
                    part.facts = fact
                return True
        return False

    def _wait_for_positions(self, parts: list[Part], deadline: float) -> bool:
        """Let the reader find the position of each, and wait for it."""
        self._parts.offer(parts)
        return self._parts.wait(
            lambda: all(part.start is not None for part in parts),
            max(0.0, deadline - time.monotonic()),
        )

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        parts = self._parts.recall(_names(partitions))
        patience = min(DRAIN, 0.5 * self._settings.poll_interval)
        done = self._parts.wait(lambda: not any(p.is_open for p in parts), patience)
        if not done and not self._parts.is_closing:
            self._complain(
                "revoke", "a batch was not finished in time: its partition goes to another worker"
            )
        self._store_offsets()  # they are committed as the partitions go
        self._parts.remove(parts)
        if parts:
            self._say("gives back", parts)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        parts = self._parts.recall(_names(partitions))
        self._parts.remove(parts)
        if parts:
            self._say("was thrown out of the group, and lost", parts)

    def _say(self, what: str, parts: Iterable[Part]) -> None:
        names = ", ".join(sorted(part.name for part in parts))
        reports.logger.info("%s: %s %s", self._name, what, names)

    # -- what brokers say besides -----------------------------------------------------------------

    def _look_at(self, troubles: list[Message]) -> None:
        for message in troubles:
            error = message.error()
            part = self._parts.get(part_name(message.topic() or "", message.partition() or 0))
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                if part is not None:
                    part.end = message.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.rejoin()  # what became of the partition is found out when it comes again
            else:
                self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._parts.fail(OnceboxError(f"{self._name}: {_text(error)}"))
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._compared_at = 0.0
        self._complain(error.code(), _text(error))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            part = self._parts.get(part_name(partition.topic, partition.partition))
            if error is None and partition.error is None and part is not None:
                part.settled = partition.offset

    def _complain(self, kind: Any, text: str) -> None:
        """Log, but not again and again."""
        now = time.monotonic()
        if now - self._complaints.get(kind, -REPEAT) >= REPEAT:
            self._complaints[kind] = now
            reports.logger.warning("%s: %s", self._name, text)


def _names(partitions: list[TopicPartition]) -> list[str]:
    return [part_name(p.topic, p.partition) for p in partitions]


def _text(error: Any) -> str:
    return error.str() if isinstance(error, KafkaError) else str(error)
