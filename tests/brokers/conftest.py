"""Fixtures for Kafka tests: a topic of orders, a database, and worker processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from brokers.kafka_worker import TABLES, Job, make_inbox
from brokers.raw_header import produce_raw_header
from support.services import wait_until
from support.services.kafka import Kafka

QUICK: dict[str, dict[str, Any]] = {
    "classic": {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300},
    "eager": {
        "session.timeout.ms": 1500,
        "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": "range",
    },
    "consumer": {"group.protocol": "consumer"},
}
"""Settings of groups that soon notice a crashed consumer."""


class Worker:
    """A worker process."""

    def __init__(self, job: Job, log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "kafka_worker.py"), _encoded(job)],
                stdout=file,
                stderr=file,
            )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Let it finish, and return its exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        return self.process.wait(60)

    def log_text(self) -> str:
        return self.log.read_text()


class Deployment:
    """A topic, a database, and the worker processes between them."""

    def __init__(self, kafka: Kafka, database: str, folder: Path, protocol: str) -> None:
        self.kafka = kafka
        self.database = database
        self.protocol = protocol
        self.group = f"billing-{folder.name}"
        self.topic = ""
        self._folder = folder
        self._workers: list[Worker] = []
        with psycopg.connect(database) as connection:
            connection.execute(TABLES)
        self.inbox = make_inbox(Job(database, ""))
        self.inbox.migrate()

    def create_topic(self, partitions: int = 2, **settings: Any) -> None:
        self.topic = self.kafka.create_topic(partitions, **settings)

    def url(self, **settings: Any) -> str:
        chosen = {**QUICK[self.protocol], **settings}
        options = "".join(f"&{name}={value}" for name, value in chosen.items())
        return f"kafka://{self.kafka.bootstrap}/{self.topic}?group={self.group}{options}"

    def start_worker(self, name: str = "w", settings: Any = None, **job: Any) -> Worker:
        """Start a worker."""
        made = Job(self.database, self.url(**(settings or {})), name=name, **job)
        worker = Worker(made, self._folder / f"{name}.log")
        self._workers.append(worker)
        return worker

    def send(self, orders: Iterable[tuple[str, int]]) -> None:
        """Send orders: a key, and the number of the order within the key."""
        self.kafka.produce(self.topic, records(orders))

    def send_bad_header(self, key: str, number: int) -> None:
        """Send an order with a header whose name is not UTF-8."""
        produce_raw_header(self.kafka.bootstrap, self.topic, order(key, number)[1], b"\xff\xfe")

    def send_slowly(self, orders: Sequence[tuple[str, int]], seconds: float) -> None:
        """Send orders over some time, in which the broker may be away."""
        chunks = 20
        size = len(orders) // chunks + 1
        for start in range(0, len(orders), size):
            self.send(orders[start : start + size])
            time.sleep(seconds / chunks)

    def send_in_transaction(self, orders: Iterable[tuple[str, int]], *, commit: bool) -> None:
        """Send orders in a Kafka transaction, and commit or abort it."""
        servers = {"bootstrap.servers": self.kafka.bootstrap}
        producer = Producer({**servers, "transactional.id": self.group})
        producer.init_transactions()
        producer.begin_transaction()
        for key, value, _ in records(orders):
            producer.produce(self.topic, value, key)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()

    def delete_before(self, offset: int) -> None:
        """Delete the messages before an offset, as retention does."""
        client = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        (done,) = client.delete_records([TopicPartition(self.topic, 0, offset)]).values()
        done.result(60)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.database) as connection:
            connection.execute(sql)

    def lose_database(self) -> None:
        """Restore the database to before the first message: all tables are empty."""
        tables = (
            "effects, keys, oncebox_inbox, oncebox_pending, oncebox_dead_letter, oncebox_position"
        )
        self.execute(f"TRUNCATE {tables}")

    def effects(self) -> list[str]:
        return sorted(row[0] for row in self.query("SELECT id FROM effects"))

    def wait_for(self, count: int) -> None:
        """Wait until the database has this number of effects, and no more."""
        try:
            wait_until(lambda: len(self.effects()) >= count, f"fewer than {count} effects")
        except TimeoutError:
            for worker in self._workers:
                print(worker.log_text()[-5000:])
            raise
        assert len(self.effects()) == count

    def position(self) -> dict[str, int]:
        return {p.partition: p.next for p in self.inbox.status().partitions}

    def committed(self) -> dict[str, int]:
        """Return the committed offsets of the group."""
        found = self.kafka.committed(self.group, self.topic)
        return {f"{self.topic}/{partition}": offset for partition, offset in found.items()}

    def check(self, orders: Iterable[tuple[str, int]]) -> None:
        """Assert that each order was processed once, in the order of its key, and none is left."""
        wanted = sorted(f"{key}-{number}" for key, number in set(orders))
        assert self.effects() == wanted
        last: dict[str, int] = {}
        for key, number in self.query("SELECT key, number FROM effects ORDER BY at"):
            assert last.get(key, -1) < number, f"{key}: {number} after {last[key]}"
            last[key] = number
        assert self.query("SELECT count(*) FROM oncebox_pending") == [(0,)]
        assert self.query("SELECT count(*) FROM oncebox_dead_letter") == [(0,)]

    def stop_workers(self) -> None:
        """Let all running workers finish."""
        alive = [worker for worker in self._workers if worker.process.poll() is None]
        for worker in alive:
            worker.send(signal.SIGTERM)
        # A worker that has just started has no signal handlers yet.
        assert {worker.stop() for worker in alive} <= {0, -signal.SIGTERM}

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.inbox.close()


def order(key: str, number: int) -> tuple[bytes, bytes, list[Any]]:
    body = {"id": f"{key}-{number}", "key": key, "number": number}
    return key.encode(), json.dumps(body).encode(), []


def records(orders: Iterable[tuple[str, int]]) -> list[tuple[bytes, bytes, list[Any]]]:
    return [order(key, number) for key, number in orders]


def orders(count: int, keys: int = 10) -> list[tuple[str, int]]:
    return [(f"k{number % keys}", number // keys) for number in range(count)]


def _encoded(job: Job) -> str:
    return msgspec.json.encode(job).decode()


@pytest.fixture(params=["classic"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def deployment(
    kafka: Kafka, postgres_url: str, tmp_path: Path, protocol: str
) -> Iterator[Deployment]:
    made = Deployment(kafka, postgres_url, tmp_path, protocol)
    yield made
    made.close()


def rest(seconds: float) -> None:
    """Wait until a timeout of the broker has passed."""
    time.sleep(seconds)
