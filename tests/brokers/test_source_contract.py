"""The contracts of sources, on every source of both kinds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokers.conftest import QUICK
from oncebox import Delivery
from oncebox.brokers.contract import Batch, PartitionedSource, QueueSource, SourceEnded
from oncebox.brokers.file import FileSource
from oncebox.brokers.kafka import KafkaSource
from oncebox.brokers.memory import MemorySource
from oncebox.brokers.stdin import StdinSource
from oncebox.model.position import Position
from support.services import wait_until

BODIES = [b'{"n": %d}' % number for number in range(10)]

# -- the sources ----------------------------------------------------------------------------------


def memory(bodies: list[bytes], request: pytest.FixtureRequest) -> QueueSource:
    return MemorySource([Delivery(body) for body in bodies])


def stdin(bodies: list[bytes], request: pytest.FixtureRequest) -> QueueSource:
    read, write = os.pipe()
    os.write(write, b"".join(body + b"\n" for body in bodies))
    os.close(write)
    request.addfinalizer(lambda: os.close(read))
    return StdinSource(read)


def file(bodies: list[bytes], request: pytest.FixtureRequest) -> PartitionedSource:
    path: Path = request.getfixturevalue("tmp_path") / "events.jsonl"
    path.write_bytes(b"".join(body + b"\n" for body in bodies))
    return FileSource(path)


def folder(bodies: list[bytes], request: pytest.FixtureRequest) -> PartitionedSource:
    path: Path = request.getfixturevalue("tmp_path")
    for number, body in enumerate(bodies):
        with (path / f"{number % 2}.jsonl").open("ab") as partition:
            partition.write(body + b"\n")
    return FileSource(path)


def kafka(bodies: list[bytes], request: pytest.FixtureRequest) -> PartitionedSource:
    server = request.getfixturevalue("kafka")
    topic = server.create_topic(2)
    server.produce(topic, [(b"%d" % n, body, []) for n, body in enumerate(bodies)])
    group = request.getfixturevalue("tmp_path").name
    return KafkaSource(server.bootstrap, [topic], group=group, settings=QUICK["classic"])


QUEUES = [memory, stdin]
LOGS = [file, folder, kafka]
every_source = pytest.mark.parametrize("kind", [*QUEUES, *LOGS], ids=lambda kind: kind.__name__)
every_queue = pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
every_log = pytest.mark.parametrize("kind", LOGS, ids=lambda kind: kind.__name__)


class Reader:
    """Reads a source of either kind as a consumer does, and keeps positions in a dict."""

    def __init__(self, source: QueueSource) -> None:
        self.source = source
        self.positions: dict[str, Position] = {}
        self.own: set[str] = set()
        self.received: dict[str, list[Delivery]] = {}

    @property
    def log(self) -> PartitionedSource:
        assert isinstance(self.source, PartitionedSource)
        return self.source

    @property
    def bodies(self) -> list[bytes]:
        return [d.body for deliveries in self.received.values() for d in deliveries]

    def assign(self) -> None:
        partitions = set(self.log.partitions())
        for partition in self.own - partitions:
            self.log.release(partition)
        self.own &= partitions
        for partition in partitions - self.own:
            position = self.positions.get(partition) or self.log.start_position(partition)
            if position is not None:
                self.log.open(position)
                self.own.add(partition)

    def read(self, limit: int = 3) -> Batch | None:
        if isinstance(self.source, PartitionedSource):
            self.assign()
        try:
            return self.source.read(limit, 0.2)
        except SourceEnded:
            return None

    def first(self, limit: int = 3) -> Batch:
        """Return the first batch, which Kafka delivers after some reads."""
        found: list[Batch] = []

        def has_batch() -> bool:
            found.extend(filter(None, [self.read(limit)]))
            return bool(found)

        wait_until(has_batch, "nothing is delivered")
        return found[0]

    def commit(self, batch: Batch) -> None:
        """Do what a consumer does after the commit of the database."""
        self.received.setdefault(batch.partition, []).extend(batch.deliveries)
        self.positions[batch.partition] = Position(batch.partition, batch.new, batch.log_id)
        self.source.ack(batch, [])

    def nack(self, batch: Batch) -> None:
        self.source.nack(batch)
        self.own.discard(batch.partition)

    def read_all(self, limit: int = 3) -> None:
        """Read until each message of the test was delivered, and make sure that no other is."""
        deadline = time.monotonic() + 60
        while len(self.bodies) < len(BODIES) and time.monotonic() < deadline:
            batch = self.read(limit)
            assert batch is None or len(batch.deliveries) <= limit
            if batch is not None:
                self.commit(batch)
        assert self.read() is None


Make = Callable[..., Reader]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Reader] = []

    def make(kind: Any, bodies: list[bytes] = BODIES) -> Reader:
        made.append(Reader(kind(bodies, request)))
        return made[-1]

    yield make
    for reader in made:
        reader.source.close()


# -- both kinds -----------------------------------------------------------------------------------


@every_source
def test_every_message_is_delivered_once_and_in_order_within_a_partition(
    kind: Any, make: Make
) -> None:
    reader = make(kind)
    reader.read_all()
    assert sorted(reader.bodies) == BODIES
    if reader.source.features.order == "partition":
        for deliveries in reader.received.values():
            bodies = [delivery.body for delivery in deliveries]
            assert bodies == sorted(bodies)


@every_source
def test_an_empty_source_delivers_nothing(kind: Any, make: Make) -> None:
    reader = make(kind, [])
    assert reader.read() is None


@every_source
def test_nacked_deliveries_come_again(kind: Any, make: Make) -> None:
    reader = make(kind)
    nacked = reader.first()
    reader.nack(nacked)
    reader.read_all()
    assert sorted(reader.bodies) == BODIES
    if reader.source.features.redeliveries:
        again = {d.body for d in reader.received[nacked.partition] if d.redelivered}
        assert again == {d.body for d in nacked.deliveries}


@every_source
def test_extended_deliveries_do_not_come_again(kind: Any, make: Make) -> None:
    reader = make(kind)
    batch = reader.first()
    reader.source.extend(batch)
    reader.source.extend(batch)
    reader.commit(batch)
    reader.read_all()
    assert sorted(reader.bodies) == BODIES


@every_source
def test_ack_nack_and_extend_do_not_raise_for_a_stale_receipt(kind: Any, make: Make) -> None:
    reader = make(kind)
    batch = reader.first()
    for _ in range(2):
        reader.source.ack(batch, [])
        reader.source.extend(batch)
        reader.source.nack(batch)


@every_source
def test_ack_nack_and_extend_do_not_raise_after_the_connection_is_closed(
    kind: Any, make: Make
) -> None:
    reader = make(kind)
    batch = reader.first()
    reader.source.close()
    reader.source.extend(batch)
    reader.source.ack(batch, [])
    reader.source.nack(batch)


@every_source
def test_a_source_that_can_be_read_has_no_trouble(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.first()
    assert reader.source.trouble() is None


# -- queues ---------------------------------------------------------------------------------------


@every_queue
def test_a_finite_queue_raises_source_ended_after_its_last_ack(kind: Any, make: Make) -> None:
    source = make(kind).source
    assert source.features.ends
    while batch := source.read(4, 0.2):
        source.ack(batch, [])
        if batch.deliveries[-1].body == BODIES[-1]:
            break
    with pytest.raises(SourceEnded):
        source.read(4, 0.2)


@every_queue
def test_a_queue_has_no_partitions(kind: Any, make: Make) -> None:
    assert not isinstance(make(kind).source, PartitionedSource)


# -- partitioned logs -----------------------------------------------------------------------------


@every_log
def test_a_finite_log_is_finished_after_its_last_position(kind: Any, make: Make) -> None:
    reader = make(kind)
    first = reader.first(1)
    assert not reader.log.is_finished(first.partition, None)
    reader.commit(first)
    reader.read_all()
    for partition, position in reader.positions.items():
        assert reader.log.is_finished(partition, position) is reader.log.features.ends


@every_log
def test_a_partition_is_read_on_from_its_position(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.commit(reader.first(2))
    for partition in reader.own:
        reader.log.release(partition)
    reader.own.clear()
    reader.read_all()
    assert sorted(reader.bodies) == BODIES


@every_log
def test_a_released_partition_is_not_read(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.commit(reader.first(1))
    for partition in reader.own:
        reader.log.release(partition)
    assert reader.log.read(9, 0.2) is None


@every_log
def test_a_nacked_partition_is_not_read_until_it_is_opened(kind: Any, make: Make) -> None:
    reader = make(kind)
    nacked = reader.first(1)
    reader.log.nack(nacked)
    while (batch := reader.log.read(9, 0.2)) is not None:
        assert batch.partition != nacked.partition


@every_log
def test_partitions_are_reassigned_only_when_they_change(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.first()
    assert not reader.log.is_reassigned()


@every_log
def test_the_lag_ends_with_the_last_message(kind: Any, make: Make) -> None:
    reader = make(kind)
    first = reader.first(1)
    wait_until(lambda: bool(reader.log.gauge(first.partition).lag), "the lag stays 0")
    reader.commit(first)
    reader.read_all()
    for partition in reader.own:
        wait_until(lambda name=partition: reader.log.gauge(name).lag == 0, "the lag stays above 0")  # type: ignore[misc]


@every_log
def test_the_retention_of_a_source_is_a_span_or_unknown(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.first()
    expected = timedelta(days=7) if kind is kafka else None
    assert reader.log.retention() == expected


@every_log
def test_coordinates_are_unique(kind: Any, make: Make) -> None:
    reader = make(kind)
    reader.read_all()
    deliveries = [d for found in reader.received.values() for d in found]
    assert None not in {delivery.coordinates for delivery in deliveries}
    assert len({delivery.coordinates for delivery in deliveries}) == len(BODIES)


# -- memory ---------------------------------------------------------------------------------------


def test_the_faults_of_a_memory_source_follow_its_seed() -> None:
    def bodies(seed: int) -> list[bytes]:
        deliveries = [Delivery(body) for body in BODIES]
        source = MemorySource(deliveries, seed=seed, duplicated=0.5, reordered=0.5)
        batch = source.read(100, 0)
        assert batch is not None
        return [delivery.body for delivery in batch.deliveries]

    assert bodies(1) == bodies(1) != bodies(2)
    assert set(bodies(1)) == set(BODIES)
    assert len(bodies(1)) > len(BODIES)


def test_a_memory_source_that_loses_its_connection_delivers_again() -> None:
    source = MemorySource([Delivery(body) for body in BODIES])
    lost = source.read(4, 0)
    assert lost is not None
    source.disconnect()
    source.ack(lost, [])  # the receipt is stale
    again = source.read(4, 0)
    assert again is not None
    assert [(d.body, d.redelivered) for d in again.deliveries] == [(b, True) for b in BODIES[:4]]


def test_a_memory_source_records_nacked_and_extended_batches() -> None:
    source = MemorySource([Delivery(body) for body in BODIES])
    batch = source.read(4, 0)
    assert batch is not None
    source.extend(batch)
    source.nack(batch)
    assert source.extended == source.nacked == [batch]
