"""Poller: the thread that asks Kafka for messages, and answers it when partitions come and go.

Nobody else touches the client. It never stops asking, however slow handlers are, so that the group
does not give up on us. When a partition comes, it waits until the reader has found its position in
the database, and fetches from there. When one is to go, it waits until the reader has let go of it,
so that nothing is in hands.
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
from oncebox.sources.kafka.cluster import Cluster, Question, is_answered, topic_ids
from oncebox.sources.kafka.pace import Complaints, Rejoin
from oncebox.sources.kafka.parts import Part, Parts, part_name
from oncebox.sources.kafka.settings import Settings
from oncebox.sources.kafka.starting import is_beyond, starting

LOOK = 0.1
"""Seconds that Kafka is asked for the first of some messages."""

SLOW = 0.5
"""Seconds without room after which partitions are paused. Not at once: what librdkafka has fetched
of a paused partition, it forgets."""

PATIENCE = 30.0
"""Seconds that a batch in hands has to be finished when its partition goes, and that the reader has
to find the position of one that comes."""

LOOK_AROUND = 1.0
"""Seconds between two looks at what is not urgent."""

MOVING = {
    KafkaError._NO_OFFSET,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
}
"""Why offsets are refused while partitions move: whoever gets them commits what is handled."""


class Poller:
    """Keeps parts filled."""

    def __init__(self, settings: Settings, parts: Parts, name: str) -> None:
        self._settings = settings
        self._parts = parts
        self._name = name
        self._cluster = Cluster(settings)
        self._patience = min(PATIENCE, 0.5 * settings.poll_interval)
        self._paused: bool | None = None
        """Whether partitions are paused; None if only some may be."""
        self._rejoin = Rejoin()
        self._complain = Complaints(name)
        self._looked_at = time.monotonic()
        self._question: Question = {}
        self._warned: tuple[str, float] | None = None
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        self._consumer = self._made({**settings.client, **callbacks})
        self._thread = Thread(target=self._run, name="oncebox-kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Leave the group. What was settled is committed."""
        self._parts.close()
        self._thread.join(PATIENCE)

    def rejoin(self) -> None:
        """Leave the group and join it again, so that every position is looked up anew."""
        self._rejoin.is_wanted = True

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
            self._cluster.forget()

    def _join(self) -> None:
        self._consumer.subscribe(
            list(self._settings.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _turn(self) -> None:
        self._leave_and_join()
        room = self._parts.room(SLOW)
        self._set_paused(not room)
        # The first one is waited for, the others are there already or come later.
        self._keep(self._consumer.consume(1, LOOK))
        if room > 1:
            self._keep(self._consumer.consume(room - 1, 0))
        self._store_offsets()
        if time.monotonic() - self._looked_at > LOOK_AROUND:
            self._looked_at = time.monotonic()
            self._find_ends()
            self._watch_hands()
            self._compare_topics()

    def _leave_and_join(self) -> None:
        """In two steps: whoever joins before he has left everything keeps some of it."""
        if self._rejoin.is_due() and self._parts.handed() is None:
            self._rejoin.begin()
            self._consumer.unsubscribe()
        elif self._rejoin.is_leaving and not self._consumer.assignment():
            self._rejoin.end()
            self._join()

    def _set_paused(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        with suppress(KafkaException):
            ours = self._consumer.assignment()
            hopeless = [p for p in ours if self._is_hopeless(p)]
            rest = [p for p in ours if p not in hopeless]
            (self._consumer.pause if paused else self._consumer.resume)(rest)

    def _is_hopeless(self, partition: TopicPartition) -> bool:
        part = self._parts.get(part_name(partition.topic, partition.partition))
        return part is None or part.start is None

    def _keep(self, messages: list[Message]) -> None:
        good = [message for message in messages if message.error() is None]
        if good:
            self._parts.fill(good)
        if len(good) < len(messages):
            self._look_at([message for message in messages if message.error() is not None])

    def _store_offsets(self) -> None:
        """What was settled is to be committed; librdkafka does so every few seconds."""
        for part, offset in self._parts.to_store():
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

    def _watch_hands(self) -> None:
        """Say once of each batch that it takes longer than Kafka would wait for us."""
        handed = self._parts.handed()
        if handed is None or handed == self._warned:
            return
        name, since = handed
        if time.monotonic() - since >= self._settings.poll_interval:
            self._warned = handed
            reports.logger.warning(
                "%s: a batch of %s has been in hands for %.0f seconds (max.poll.interval.ms): "
                "its handlers are slow, or hang. The partition stays ours meanwhile",
                self._name,
                name,
                time.monotonic() - since,
            )

    def _compare_topics(self) -> None:
        """A topic of the same name may be another one by now. Nobody waits for the answer."""
        known = {p.topic: p.facts.topic_id for p in self._parts.all() if p.start is not None}
        if self._question and is_answered(self._question):
            try:
                now = topic_ids(self._question)
                if any(now.get(topic, old) != old for topic, old in known.items()):
                    self.rejoin()
            except KafkaException:
                self._cluster.forget()
            self._question = {}
        elif not self._question:
            self._question = self._cluster.ask(sorted(known))

    # -- partitions come and go -------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        parts = [Part(p.topic, p.partition) for p in partitions]
        ready = self._find_facts(parts) and self._open(parts)
        assigned = [TopicPartition(p.topic, p.partition, p.start or 0) for p in parts]
        (consumer.incremental_assign if self._settings.is_incremental else consumer.assign)(
            assigned
        )
        self._paused = None
        idle = [p for p, part in zip(assigned, parts, strict=True) if part.start is None]
        if idle:
            consumer.pause(idle)
        self._say("reads", [part for part in parts if part.start is not None])
        if ready and not idle:
            self._rejoin.succeeded()
        elif not self._parts.is_closing:
            names = ", ".join(part_name(p.topic, p.partition) for p in idle)
            self._complain.about("assign", f"cannot read {names} now; it is tried again")
            self.rejoin()

    def _find_facts(self, parts: list[Part]) -> bool:
        """Ask the brokers about partitions, until they answer."""
        deadline = time.monotonic() + self._patience
        while not self._parts.is_closing and time.monotonic() < deadline:
            try:
                facts = self._cluster.facts(self._consumer, parts)
            except KafkaException as error:
                self._complain.about("facts", f"brokers do not answer: {_text(error.args[0])}")
                self._cluster.forget()
                self._parts.wait(lambda: False, 1.0)
            else:
                for part, fact in zip(parts, facts, strict=True):
                    part.facts = fact
                return True
        return False

    def _open(self, parts: list[Part]) -> bool:
        """Let the reader find the position of each, and begin there."""
        self._parts.offer(parts)
        found = self._parts.wait(
            lambda: all(part.position or part.is_hopeless for part in parts), self._patience
        )
        if not found:
            self._parts.remove(self._parts.recall([part.name for part in parts]))
            return False
        at = [(part, part.position) for part in parts if part.position is not None]
        # Somebody may have moved the position since we asked how long the partition is.
        doubtful = [part for part, position in at if is_beyond(position, part.facts)]
        if doubtful and not self._find_facts(doubtful):
            return False
        for part, position in at:
            part.begin(starting(position, part.facts), position.next)
        return True

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        parts = self._parts.recall(_names(partitions))
        done = self._parts.wait(lambda: all(p.position is None for p in parts), self._patience)
        if not done and not self._parts.is_closing:
            self._complain.about(
                "revoke", "a batch was not finished in time: its partition goes to another worker"
            )
        self._store_offsets()  # they are committed as the partitions go
        self._parts.remove(parts)
        self._say("gives back", parts)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        parts = self._parts.recall(_names(partitions))
        self._parts.remove(parts)
        self._say("has lost, to its group or with the topic,", parts)

    def _say(self, what: str, parts: Iterable[Part]) -> None:
        if names := ", ".join(sorted(part.name for part in parts)):
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
                    self._parts.ended(part, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.rejoin()  # what became of the partition is found out when it comes again
            else:
                self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._parts.fail(OnceboxError(f"{self._name}: {_text(error)}"))
        self._complain.about(error.code(), _text(error))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None:
            if error.code() not in MOVING:
                self._complain.about("commit", f"offsets could not be committed: {_text(error)}")
            return
        for partition in partitions:
            part = self._parts.get(part_name(partition.topic, partition.partition))
            if part is not None and partition.error is None and partition.offset >= 0:
                part.settled = partition.offset


def _names(partitions: list[TopicPartition]) -> list[str]:
    return [part_name(p.topic, p.partition) for p in partitions]


def _text(error: Any) -> str:
    return error.str() if isinstance(error, KafkaError) else str(error)
