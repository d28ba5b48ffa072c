"""The Kafka source by itself, with a reader that keeps its positions in a dict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from brokers.conftest import QUICK
from oncebox import Consumer, Coordinates, Inbox, Retention
from oncebox.brokers.kafka import KafkaSource, admin, rebalance
from oncebox.brokers.kafka.partition import Partition
from oncebox.brokers.kafka.start_offset import Facts
from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.model.position import Position
from support.services import wait_until
from support.services.kafka import Kafka


class Reader:
    """Reads a source as a consumer does, and records the messages."""

    def __init__(self, source: KafkaSource, positions: dict[str, Position]) -> None:
        self.source = source
        self.positions = positions
        self.own: set[str] = set()
        self.received: list[bytes] = []

    def assign(self) -> None:
        """Open assigned partitions, and release revoked ones."""
        if not self.source.is_reassigned() and self.own:
            return
        partitions = set(self.source.partitions())
        for partition in self.own - partitions:
            self.source.release(partition)
        for partition in sorted(partitions - self.own):
            position = self.positions.get(partition) or self.source.start_position(partition)
            if position is None:
                partitions.discard(partition)
            else:
                self.source.open(position)
        self.own = partitions

    def step(self, limit: int = 500) -> None:
        self.assign()
        batch = self.source.read(limit, 0.1)
        if batch is not None:
            self.received += [delivery.body for delivery in batch.deliveries]
            self.positions[batch.partition] = Position(batch.partition, batch.new, batch.log_id)
            self.source.ack(batch, [])

    def until(self, condition: Callable[[], bool], complaint: str) -> None:
        def stepped() -> bool:
            self.step()
            return condition()

        wait_until(stepped, complaint)


Make = Callable[..., Reader]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(kafka: Kafka, protocol: str, tmp_path: Path) -> Iterator[Make]:
    made: list[KafkaSource] = []
    positions: dict[str, Position] = {}

    def make(topic: str, bootstrap: str = kafka.bootstrap, **settings: Any) -> Reader:
        chosen = {**QUICK[protocol], **{k.replace("_", "."): v for k, v in settings.items()}}
        source = KafkaSource(bootstrap, [topic], group=tmp_path.name, settings=chosen)
        made.append(source)
        return Reader(source, positions)

    yield make
    for source in made:
        source.close()


def messages(count: int, start: int = 0) -> list[Any]:
    return [(b"%d" % n, b"%d" % n, []) for n in range(start, start + count)]


def bodies(count: int) -> set[bytes]:
    return {b"%d" % n for n in range(count)}


@pytest.mark.slow
def test_a_paused_partition_is_read_on_after_a_rebalance(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(2)
    one, two = make(topic), make(topic)

    def shared() -> bool:
        one.step()
        two.step()
        return len(one.own) == len(two.own) == 1

    wait_until(shared, "they do not share")
    kafka.produce(topic, messages(9000))
    one.until(lambda: bool(one.received), "nothing comes")
    wait_until(lambda: one.source._poller._fetching.is_paused is True, "it is not paused")  # type: ignore[union-attr]
    two.source.close()
    wait_until(one.source.is_reassigned, "the other partition does not come")
    one.until(lambda: bodies(9000) <= {*one.received, *two.received}, "not everything came")


@pytest.mark.slow
def test_partitions_that_are_not_opened_in_time_are_assigned_again(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "TIMEOUT", 1.0)
    topic = kafka.create_topic(2)
    kafka.produce(topic, messages(10))
    one = make(topic)
    one.source.partitions()
    time.sleep(4)  # longer than it waits
    one.until(lambda: set(one.received) == bodies(10), "not everything came")


@pytest.mark.slow
@pytest.mark.crash
def test_a_broker_that_hangs_is_waited_for(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "TIMEOUT", 0.5)
    topic = kafka.create_topic(1)
    kafka.produce(topic, messages(10))
    one = make(topic)
    one.until(lambda: set(one.received) == bodies(10), "not everything came")
    kafka.pause()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        one.step()
    kafka.resume()
    kafka.produce(topic, messages(10, start=10))
    one.until(lambda: set(one.received) == bodies(20), "not everything came")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_partition_without_a_leader_does_not_hold_the_others(
    kafka_cluster: Kafka, make: Make
) -> None:
    topic = kafka_cluster.create_topic(3, replicas=1)
    for partition in range(3):
        kafka_cluster.produce(topic, messages(10, start=10 * partition), partition)
    crashed = kafka_cluster.leader(topic, 0)
    running = [node.address for n, node in enumerate(kafka_cluster.nodes) if n != crashed]
    kafka_cluster.crash(crashed)
    lost = sum(kafka_cluster.leader(topic, p) in (crashed, -2) for p in range(3))
    one = make(topic, ",".join(running))
    one.until(lambda: len(set(one.received)) == 30 - 10 * lost, "the others do not come")
    kafka_cluster.restart(crashed)
    one.until(lambda: set(one.received) == bodies(30), "it does not come again")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_an_invalid_broker_timestamp_is_ignored(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(1, message_timestamp_after_max_ms=2**63 - 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"0", timestamp=int(time.time() * 1e6))
    producer.flush()
    one = make(topic)
    one.until(lambda: one.received == [b"0"], "it does not come")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_fatal_error_ends_the_reader(kafka: Kafka, make: Make) -> None:
    """Two consumers with the same instance id remove each other from the group."""
    topic = kafka.create_topic(1)
    one, two = make(topic, group_instance_id="same"), make(topic, group_instance_id="same")
    assert one.source.features.single
    one.until(lambda: bool(one.own), "nothing is assigned")
    two.until(lambda: bool(two.own), "nothing is assigned")
    with pytest.raises(OnceboxError, match="fenced"):
        one.until(lambda: False, "it goes on")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_closed_source_raises(kafka: Kafka, make: Make) -> None:
    one = make(kafka.create_topic(1))
    one.step()
    one.source.close()
    with pytest.raises(OnceboxError, match="closed"):
        one.source.partitions()


# -- with a consumer, and without a poller --------------------------------------------------------


class IdlePoller:
    """A poller that does nothing."""

    def rejoin(self) -> None: ...

    def trouble(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def idle(sqlite_url: str) -> Iterator[tuple[Consumer, KafkaSource]]:
    inbox = Inbox("billing", sqlite_url, identity=Coordinates())
    inbox.migrate()
    source = KafkaSource("localhost:1", ["t"], group="g")
    source._poller = IdlePoller()  # type: ignore[assignment]
    source.retention = lambda: None  # type: ignore[method-assign] # it needs a broker
    yield Consumer(inbox, source), source
    inbox.close()


def assigned(source: KafkaSource) -> Partition:
    partition = Partition("t", 0)
    partition.facts = Facts(0, 100, 50, topic_id="id")
    source._assignment.add([partition])
    return partition


def steps(consumer: Consumer, count: int) -> None:
    """Run a consumer for a number of beats."""
    beats = iter(range(count))
    consumer.on_beat = lambda waits: consumer.stop() if next(beats, None) is None else None
    consumer.run()


def test_a_partition_that_is_revoked_before_it_is_opened_leaves_no_position(
    idle: tuple[Consumer, KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, source = idle
    partition = assigned(source)
    find = type(consumer._inbox._context.store).positions

    def positions(*args: Any) -> Any:
        found = yield from find(*args)
        source._assignment.remove([partition])
        return found

    monkeypatch.setattr(type(consumer._inbox._context.store), "positions", positions)
    steps(consumer, 2)
    assert consumer._inbox.status().partitions == []


def test_a_partition_that_is_assigned_again_after_a_database_error_is_opened(
    idle: tuple[Consumer, KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, source = idle
    first = assigned(source)
    release_partition = type(consumer._inbox._context.store).release_partition
    again: list[Partition] = []

    def blip(*args: Any, **how: Any) -> Any:
        if len(again) == 1:
            again.append(again[0])
            raise DatabaseUnavailable("for a moment")
        return release_partition(*args, **how)

    monkeypatch.setattr(type(consumer._inbox._context.store), "release_partition", blip)

    def lose(waits_for: str) -> None:
        if first.position is not None and not again:
            source._assignment.revoke([first.name])
            source._assignment.remove([first])
            again.append(assigned(source))
        elif again and again[0].position is not None:
            consumer.stop()

    consumer.on_beat = lose
    consumer.run()
    assert again[0].position is not None
    assert len(again) == 2


def test_a_retention_shorter_than_that_of_the_topic_is_warned_of(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create_topic(1)
    kafka.produce(topic, messages(1))
    inbox = Inbox(
        "billing",
        f"sqlite:///{tmp_path}/x.db",
        identity=Coordinates(),
        unknown_type="ignore",
        retention=Retention(days=1),
    )
    inbox.migrate()
    inbox.on("never")(lambda payload: None)
    consumer = Consumer(inbox, KafkaSource(kafka.bootstrap, [topic], group=tmp_path.name))
    consumer.on_beat = lambda waits: consumer.stop() if "longer Retention" in caplog.text else None
    consumer.run()
    inbox.close()
    assert "keeps messages for 7 days, but this inbox purges them after 1 days" in caplog.text
