"""Real Kafka brokers for the tests: started, borrowed, or a mock if there is no Java."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata, TopicMetadata

from support.services import PATIENCE, Unavailable, required, wait_until
from support.services.kafka_client import (
    ArchivedMessage,
    admin,
    find_topic,
    led,
    outsider,
    place,
    producing,
    raise_for_error,
)
from support.services.kafka_distribution import VERSION, Distribution, new_id
from support.services.kafka_download import find_distribution
from support.services.kafka_mock import Mock
from support.services.kafka_node import Node, start_all


@dataclass
class Kafka:
    """Brokers under test, ours to break unless ONCEBOX_TEST_KAFKA_URL lent them to us."""

    bootstrap: str
    version: str
    origin: str
    fidelity: str = "real"
    home: Path | None = field(default=None, repr=False)
    nodes: list[Node] = field(default_factory=list, repr=False)
    mock: Mock | None = field(default=None, repr=False)
    _topics: set[str] = field(default_factory=set, repr=False)

    def create_topic(
        self,
        partitions: int = 1,
        replicas: int | None = None,
        *,
        name: str | None = None,
        **settings: object,
    ) -> str:
        """Create a topic, under a new name unless one is given, and return when all know it.

        A setting such as `cleanup.policy` is written `cleanup_policy`.
        """
        name = name or f"oncebox-{uuid4().hex}"
        if self.mock is not None:
            self.mock.create_topic(name, partitions, replicas)
            return name
        dotted = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, partitions, -1 if replicas is None else replicas, config=dotted)
        self._ask(lambda client: client.create_topics([topic]))
        self._topics.add(name)
        self._wait_everywhere(led, name)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return when all have forgotten it."""
        self._real()
        self._topics.discard(name)
        self._ask(lambda client: client.delete_topics([name]))
        self._wait_everywhere(lambda found: found is None, name)

    def topic_id(self, name: str) -> str:
        """The id that tells a topic from its successor of the same name."""
        self._real()
        topics = TopicCollection([name])
        return str(self._ask(lambda client: client.describe_topics(topics)).topic_id)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The index of the node that leads a partition."""
        leader: int = self._partitions(topic)[partition].leader
        return leader - 1

    def follower(self, topic: str, partition: int = 0) -> int:
        """The index of a node that has a copy of a partition and does not lead it."""
        found = self._partitions(topic)[partition]
        return next(id - 1 for id in found.replicas if id != found.leader)

    def produce(
        self, topic: str, records: Iterable[ArchivedMessage], partition: int = -1
    ) -> list[tuple[int, int]]:
        """Send (key, value, headers) and return partition and offset of each.

        All in-sync replicas have them then. A broker that crashes meanwhile may get some twice.
        """
        receipts: dict[int, tuple[KafkaError | None, Message]] = {}

        def note(index: int, error: KafkaError | None, message: Message) -> None:
            receipts[index] = (error, message)

        producer = Producer(producing(self.bootstrap))
        for index, (key, value, headers) in enumerate(records):
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=partial(note, index),
                headers=list(headers),
            )
        producer.flush()
        return [place(*receipts[index]) for index in sorted(receipts)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offset that a group has committed, for each partition where it has."""
        with outsider(self.bootstrap, group) as client:
            asked = [TopicPartition(topic, number) for number in self._partitions(topic)]
            found = client.committed(asked, timeout=PATIENCE)
        raise_for_error(found)
        return {at.partition: at.offset for at in found if at.offset >= 0}

    def rewind(self, group: str, topic: str) -> None:
        """Send a group that has no members back to the beginning of a topic."""
        self._real()
        with outsider(self.bootstrap, group) as client:
            beginning = [TopicPartition(topic, number, 0) for number in self._partitions(topic)]
            raise_for_error(client.commit(offsets=beginning, asynchronous=False))

    def crash(self, node: int = 0) -> None:
        """Kill a node with SIGKILL."""
        self._ours(node).kill()

    def pause(self, node: int = 0) -> None:
        """Freeze a node: connections stay open, nothing answers."""
        self._ours(node).pause()

    def resume(self, node: int = 0) -> None:
        """Let a paused node go on where it stood."""
        self._ours(node).resume()

    def restart(self, node: int = 0) -> None:
        """Start a node again on the same data and port, stopping it first if it runs."""
        ours = self._ours(node)
        ours.shut_down()
        ours.start()
        ours.wait()

    def heal(self) -> None:
        """Undo the pauses and crashes that a failed test left behind."""
        down = [node for node in self.nodes if not node.running()]
        for node in self.nodes:
            node.resume()
        start_all(down)

    def clear(self) -> None:
        """Delete the topics that were created here: each of them keeps files open."""
        while self._topics:
            self.delete_topic(next(iter(self._topics)))

    def stop(self) -> None:
        """End the servers and remove their data; lent ones keep running."""
        for node in self.nodes:
            node.kill()
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)
        if self.mock is not None:
            self.mock.stop()

    def _ask(self, question: Callable[[AdminClient], dict[str, Future[Any]]]) -> Any:
        client = admin(self.bootstrap)  # let go of too early, it takes the answer with it
        (answer,) = question(client).values()
        return answer.result(PATIENCE)

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        found = find_topic(self.bootstrap, topic)
        assert found is not None, f"there is no topic {topic}"
        return found.partitions

    def _ours(self, node: int) -> Node:
        self._real()
        if not self.nodes:
            pytest.skip("the brokers of ONCEBOX_TEST_KAFKA_URL are not ours to break")
        return self.nodes[node]

    def _real(self) -> None:
        if self.mock is not None:
            pytest.skip("this needs a real broker")

    def _wait_everywhere(self, settled: Callable[[TopicMetadata | None], bool], name: str) -> None:
        awake = [node.address for node in self.nodes if node.awake()]
        looks = [partial(find_topic, address, name) for address in awake or [self.bootstrap]]
        wait_until(lambda: all(settled(look()) for look in looks), f"{name} is unsettled")


def start(nodes: int = 1) -> Kafka:
    """Give the first Kafka that can be had, or raise Unavailable with the reason."""
    if url := os.environ.get("ONCEBOX_TEST_KAFKA_URL"):
        return borrow(url, nodes)
    try:
        distribution = find_distribution()
    except Unavailable as reason:
        if required("kafka"):
            raise
        return imitate(nodes, reason)
    return launch_on_free_ports(distribution, nodes)


def borrow(url: str, nodes: int) -> Kafka:
    """Use brokers that were started elsewhere."""
    try:
        found = len(admin(url).list_topics(timeout=10).brokers)
    except KafkaException as error:
        raise Unavailable(f"ONCEBOX_TEST_KAFKA_URL does not answer: {error}") from error
    if found < nodes:
        raise Unavailable(f"ONCEBOX_TEST_KAFKA_URL has {found} of {nodes} brokers")
    return Kafka(url, "unknown", "ONCEBOX_TEST_KAFKA_URL")


def imitate(nodes: int, reason: Unavailable) -> Kafka:
    """Use the mock, for want of something real."""
    mock = Mock(nodes)
    version = libversion()[0]
    return Kafka(mock.bootstrap, version, f"librdkafka: {reason}", "mock", mock=mock)


def launch_on_free_ports(distribution: Distribution, nodes: int, attempts: int = 3) -> Kafka:
    """Launch, on other ports if another process took ours between the choice and the start."""
    try:
        return launch(distribution, nodes)
    except Unavailable:
        if attempts == 1:
            raise
        return launch_on_free_ports(distribution, nodes, attempts - 1)


def launch(distribution: Distribution, size: int) -> Kafka:
    """Start brokers of our own on fresh data directories."""
    home = Path(tempfile.mkdtemp(prefix="oncebox-kafka-"))
    cluster_id, ids = new_id(), range(1, size + 1)
    nodes = [Node(id, cluster_id, distribution, home / str(id)) for id in ids]
    bootstrap = ",".join(node.address for node in nodes)
    kafka = Kafka(bootstrap, VERSION, "Maven Central", home=home, nodes=nodes)
    try:
        for node in nodes:
            node.initialise([each.voter for each in nodes])
        start_all(nodes)
    except BaseException:
        kafka.stop()
        raise
    return kafka
