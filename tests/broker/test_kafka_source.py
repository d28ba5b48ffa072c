"""The Kafka source by itself, with a reader that finds its positions in a dict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.conftest import QUICK
from oncebox import Consumer, Coordinates, Inbox, Retention
from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.sources import KafkaSource
from oncebox.sources.kafka import cluster, poller
from oncebox.sources.kafka.parts import Part
from oncebox.sources.kafka.starting import Facts
from oncebox.store.records import Position
from services import wait_until
from services.kafka import Kafka


class Reader:
    """Does what a consumer does, and writes down what it got."""

    def __init__(self, source: KafkaSource, positions: dict[str, Position]) -> None:
        self.source = source
        self.positions = positions
        self.own: set[str] = set()
        self.got: list[bytes] = []

    def look(self) -> None:
        """Open what came, and let go of what went."""
        if not self.source.is_reassigned() and self.own:
            return
        parts = set(self.source.parts())
        for part in self.own - parts:
            self.source.release(part)
        for part in sorted(parts - self.own):
            position = self.positions.get(part) or self.source.beginning(part)
            if position is None:
                parts.discard(part)
            else:
                self.source.open(position)
        self.own = parts

    def step(self, limit: int = 500) -> None:
        self.look()
        batch = self.source.read(limit, 0.1)
        if batch is not None:
            self.got += [delivery.body for delivery in batch.deliveries]
            self.positions[batch.part] = Position(batch.part, batch.new, batch.mark)
            self.source.settle(batch, [])

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
def test_a_partition_that_was_paused_goes_on_after_a_rebalance(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(2)
    one, two = make(topic), make(topic)

    def shared() -> bool:
        one.step()
        two.step()
        return len(one.own) == len(two.own) == 1

    wait_until(shared, "they do not share")
    kafka.produce(topic, messages(9000))
    one.until(lambda: bool(one.got), "nothing comes")
    wait_until(lambda: one.source._poller._paused is True, "it is not paused")  # type: ignore[union-attr]
    two.source.close()
    wait_until(one.source.is_reassigned, "the other partition does not come")
    one.until(lambda: bodies(9000) <= {*one.got, *two.got}, "not everything came")


@pytest.mark.slow
def test_partitions_that_nobody_opens_in_time_come_again(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "PATIENCE", 1.0)
    topic = kafka.create_topic(2)
    kafka.produce(topic, messages(10))
    one = make(topic)
    one.source.parts()
    time.sleep(4)  # longer than it waits
    one.until(lambda: set(one.got) == bodies(10), "not everything came")


@pytest.mark.slow
@pytest.mark.crash
def test_a_broker_that_hangs_is_waited_for(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    topic = kafka.create_topic(1)
    kafka.produce(topic, messages(10))
    one = make(topic)
    one.until(lambda: set(one.got) == bodies(10), "not everything came")
    kafka.pause()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        one.step()
    kafka.resume()
    kafka.produce(topic, messages(10, start=10))
    one.until(lambda: set(one.got) == bodies(20), "not everything came")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_partition_without_a_leader_does_not_hold_the_others(
    kafka_cluster: Kafka, make: Make
) -> None:
    topic = kafka_cluster.create_topic(3, replicas=1)
    for partition in range(3):
        kafka_cluster.produce(topic, messages(10, start=10 * partition), partition)
    gone = kafka_cluster.leader(topic, 0)
    alive = [node.address for n, node in enumerate(kafka_cluster.nodes) if n != gone]
    kafka_cluster.crash(gone)
    lost = sum(kafka_cluster.leader(topic, p) in (gone, -2) for p in range(3))
    one = make(topic, ",".join(alive))
    one.until(lambda: len(set(one.got)) == 30 - 10 * lost, "the others do not come")
    kafka_cluster.restart(gone)
    one.until(lambda: set(one.got) == bodies(30), "it does not come again")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_time_that_is_none_is_no_poison(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(1, message_timestamp_after_max_ms=2**63 - 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"0", timestamp=int(time.time() * 1e6))
    producer.flush()
    one = make(topic)
    one.until(lambda: one.got == [b"0"], "it does not come")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_an_error_that_is_fatal_ends_the_reader(kafka: Kafka, make: Make) -> None:
    """Two with the same instance id throw each other out of the group."""
    topic = kafka.create_topic(1)
    one, two = make(topic, group_instance_id="same"), make(topic, group_instance_id="same")
    assert one.source.features.single
    one.until(lambda: bool(one.own), "nothing is assigned")
    two.until(lambda: bool(two.own), "nothing is assigned")
    with pytest.raises(OnceboxError, match="fenced"):
        one.until(lambda: False, "it goes on")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_source_that_was_closed_says_so(kafka: Kafka, make: Make) -> None:
    one = make(kafka.create_topic(1))
    one.step()
    one.source.close()
    with pytest.raises(OnceboxError, match="closed"):
        one.source.parts()


# -- with a consumer, and nobody who fills --------------------------------------------------------


class Still:
    """A poller that does nothing."""

    def rejoin(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def still(sqlite_url: str) -> Iterator[tuple[Consumer, KafkaSource]]:
    inbox = Inbox("billing", sqlite_url, identity=Coordinates())
    inbox.migrate()
    source = KafkaSource("localhost:1", ["t"], group="g")
    source._poller = Still()  # type: ignore[assignment]
    source.keeps = lambda: None  # type: ignore[method-assign] # there is nobody to ask
    yield Consumer(inbox, source), source
    inbox.close()


def offered(source: KafkaSource) -> Part:
    part = Part("t", 0)
    part.facts = Facts(0, 100, 50, "id")
    source._parts.offer([part])
    return part


def steps(consumer: Consumer, count: int) -> None:
    """Let a consumer look around so many times."""
    looks = iter(range(count))
    consumer.on_beat = lambda waits: consumer.stop() if next(looks, None) is None else None
    consumer.run()


def test_a_part_that_goes_before_it_is_opened_leaves_no_position(
    still: tuple[Consumer, KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, source = still
    part = offered(source)
    find = type(consumer._inbox._store).positions

    def positions(*args: Any) -> Any:
        found = yield from find(*args)
        source._parts.remove([part])
        return found

    monkeypatch.setattr(type(consumer._inbox._store), "positions", positions)
    steps(consumer, 2)
    assert consumer._inbox.look.status().parts == []


def test_a_part_that_comes_again_is_opened_though_the_database_was_away(
    still: tuple[Consumer, KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, source = still
    first = offered(source)
    let_go = type(consumer._inbox._store).let_go
    again: list[Part] = []

    def blip(*args: Any, **how: Any) -> Any:
        if len(again) == 1:
            again.append(again[0])
            raise DatabaseUnavailable("for a moment")
        return let_go(*args, **how)

    monkeypatch.setattr(type(consumer._inbox._store), "let_go", blip)

    def lose(waits: bool) -> None:
        if first.position is not None and not again:
            source._parts.recall([first.name])
            source._parts.remove([first])
            again.append(offered(source))
        elif again and again[0].position is not None:
            consumer.stop()

    consumer.on_beat = lose
    consumer.run()
    assert again[0].position is not None
    assert len(again) == 2


def test_an_inbox_that_forgets_sooner_than_its_topic_is_warned_of(
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
    assert "keeps messages for 7 days, and this inbox forgets them after 1 days" in caplog.text
