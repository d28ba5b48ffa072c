"""A worker in a process of its own: it reads a topic and drains what was stored.

    python kafka_worker.py '{"database": ..., "url": "kafka://...", ...}'

Its handler keeps a log of effects, and asserts within its transaction that the messages of a key
come in their order.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Literal

import msgspec

from oncebox import Consumer, Drainer, Inbox, Json, Retry, Transaction, source_of
from oncebox.sources import Batch, Source

TABLES = """
CREATE TABLE keys (key text, number integer, PRIMARY KEY (key, number));
CREATE TABLE effects (
  id text, key text, number integer, worker text, at serial,
  FOREIGN KEY (key, number) REFERENCES keys
);
"""

NEXT = """
INSERT INTO keys (key, number) SELECT :key, :number
WHERE coalesce((SELECT max(number) FROM keys WHERE key = :key), -1) = :number - 1
"""
"""A number that is not the next one of its key is not noted, and then its effect is refused."""


class Job(msgspec.Struct):
    """What a worker is to do."""

    database: str
    url: str
    name: str = "w"
    mode: Literal["inline", "stored"] = "inline"
    batch: int = 50
    pace: float = 0
    """Seconds that a handler takes."""
    die_before_settling: bool = False


class Order(msgspec.Struct):
    id: str
    key: str
    number: int


def make_inbox(job: Job) -> Inbox:
    inbox = Inbox(
        "billing",
        job.database,
        identity=Json("id", type=lambda _: "order", key="key"),
        retry=Retry(max_attempts=3, first=timedelta(milliseconds=20)),
        transaction_timeout=timedelta(seconds=3),
        payload_limit=100_000,
    )

    @inbox.on("order")
    def write(order: Order, tx: Transaction) -> None:
        tx.execute(NEXT, key=order.key, number=order.number)
        tx.execute(
            "INSERT INTO effects (id, key, number, worker) VALUES (:id, :key, :number, :worker)",
            id=order.id,
            key=order.key,
            number=order.number,
            worker=job.name,
        )
        time.sleep(job.pace)

    return inbox


def dying(source: Source) -> Source:
    """Die after the commit, before Kafka is told."""

    def settle(batch: Batch, outcomes: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    source.settle = settle  # type: ignore[method-assign]
    return source


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    logging.basicConfig(level="INFO", format=f"%(asctime)s {job.name} %(message)s")
    source = source_of(job.url)
    if job.die_before_settling:
        source = dying(source)
    consumer = Consumer(make_inbox(job), source, mode=job.mode, batch=job.batch)
    drainer = Drainer(make_inbox(job), batch=job.batch)
    draining = threading.Thread(target=drainer.run)
    draining.start()
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    try:
        consumer.run()
    finally:
        drainer.stop()
        draining.join()


if __name__ == "__main__":
    main()
