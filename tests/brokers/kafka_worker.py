"""A worker process: it reads a topic, and runs the messages that were stored.

    python kafka_worker.py '{"database": ..., "url": "kafka://...", ...}'

Its handler writes a row for each message, and its transaction fails if the messages of a key come
out of order.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Literal

import msgspec

from oncebox import Consumer, Inbox, Json, Retry, Transaction, Worker, source_of
from oncebox.brokers.contract import Batch, QueueSource

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
"""Inserts only the next number of a key. The foreign key refuses the row of any other number."""


class Job(msgspec.Struct):
    """The arguments of a worker process."""

    database: str
    url: str
    name: str = "w"
    mode: Literal["inline", "stored"] = "inline"
    batch: int = 50
    pace: float = 0
    """Seconds that a handler takes."""
    crash_before_ack: bool = False
    crash_on: str | None = None
    """The id of the order whose conversion crashes the process."""


class Order(msgspec.Struct):
    id: str
    key: str
    number: int


def make_inbox(job: Job) -> Inbox:
    inbox = Inbox(
        "billing",
        job.database,
        identity=Json("id", type=lambda _: "order", key="key"),
        retry=Retry(max_attempts=3, initial_delay=timedelta(milliseconds=20)),
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


def crash_at_ack(source: QueueSource) -> None:
    """Let the process crash after the commit, before the ack."""

    def ack(batch: Batch, outcomes: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    source.ack = ack  # type: ignore[method-assign]


def crash_on(id: str) -> None:
    """Let the conversion of one order crash, as confluent-kafka does with some headers."""
    from oncebox.brokers.kafka import conversion

    read = conversion._headers_of

    def headers_of(message: Any) -> Any:
        if f'"{id}"'.encode() in (message.value() or b""):
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(message)

    conversion._headers_of = headers_of  # type: ignore[assignment]


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    logging.basicConfig(level="INFO", format=f"%(asctime)s {job.name} %(message)s")
    source = source_of(job.url)
    if job.crash_on is not None:
        crash_on(job.crash_on)
    if job.crash_before_ack:
        crash_at_ack(source)
    consumer = Consumer(make_inbox(job), source, mode=job.mode, batch=job.batch)
    worker = Worker(make_inbox(job), batch=job.batch)
    working = threading.Thread(target=worker.run)
    working.start()
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    try:
        consumer.run()
    finally:
        worker.stop()
        working.join()


if __name__ == "__main__":
    main()
