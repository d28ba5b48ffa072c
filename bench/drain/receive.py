"""Receive: storing in batches against a transaction per message by hand."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg

from bench.drain.comparison import line
from bench.drain.options import Options
from bench.environment import Environment
from bench.workload import Payment, Stream, batches, read
from oncebox import Delivery, Inbox

GOAL = 10.0
MESSAGES = 3000
TABLES = """
CREATE TABLE inbox (
  message_id text COLLATE "C" PRIMARY KEY, payload bytea NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE pending (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL, payload bytea NOT NULL, available_at timestamptz);
CREATE INDEX ON pending (key, id);
"""
INBOX = "INSERT INTO inbox (message_id, payload) VALUES (%s, %s) ON CONFLICT DO NOTHING"
PENDING = "INSERT INTO pending (message_id, key, payload) VALUES (%s, %s, %s)"


def receive(environment: Environment, options: Options) -> Iterator[str]:
    """One process each, 20 % duplicates."""
    urls = [environment.database(), environment.database()]
    inbox = Inbox("bench", urls[1])
    inbox.on("payment")(_nothing)
    inbox.migrate()
    rates: tuple[list[float], list[float]] = ([], [])
    with psycopg.connect(urls[0]) as connection, inbox:
        connection.execute(TABLES)
        connection.commit()
        contenders = [_by_hand(connection), _through(inbox, options.batch)]
        stream = Stream()
        for number in range(options.rounds + 1):
            deliveries = stream.take(MESSAGES)
            for contender, found in zip(contenders, rates, strict=True):
                rate = len(deliveries) / _seconds(contender, deliveries)
                if number:
                    found.append(rate)
        _check(urls, stream.totals.payments)
    yield f"receive, {MESSAGES:,} deliveries a round, one process, 20 % duplicates"
    yield line("a transaction per message", rates[0])
    yield line(f"inbox.receive(), by {options.batch}", rates[1], rates[0], GOAL)


def _nothing(payment: Payment) -> None:
    """It is not run."""


def _by_hand(connection: psycopg.Connection) -> Callable[[Sequence[Delivery]], None]:
    def store(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            if connection.execute(INBOX, (payment.id, delivery.body)).rowcount:
                connection.execute(PENDING, (payment.id, payment.account, delivery.body))
            connection.commit()

    return store


def _through(inbox: Inbox, batch: int) -> Callable[[Sequence[Delivery]], None]:
    def store(deliveries: Sequence[Delivery]) -> None:
        for chunk in batches(deliveries, batch):
            inbox.receive(chunk)

    return store


def _seconds(store: Callable[[Sequence[Delivery]], None], deliveries: Sequence[Delivery]) -> float:
    gc.collect()
    started = time.perf_counter()
    store(deliveries)
    return time.perf_counter() - started


def _check(urls: Sequence[str], expected: int) -> None:
    for url, prefix in zip(urls, ("", "oncebox_"), strict=True):
        with psycopg.connect(url) as connection:
            for table in ("inbox", "pending"):
                count = f"SELECT count(*), count(DISTINCT message_id) FROM {prefix}{table}"
                found = connection.execute(count).fetchall()[0]
                assert found == (expected, expected), (prefix, table, found, expected)
