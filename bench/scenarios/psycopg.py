"""psycopg: a pipeline around the batch, against a transaction per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.work import book, book_all, by_hand
from bench.workload import batches
from oncebox import Delivery, Inbox


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message, a handler per batch."""
    urls = [environment.postgres() for _ in range(3)]
    single, many = Inbox("bench", urls[1]), Inbox("bench", urls[2])
    single.on("payment")(book)
    many.on("payment", batch=True)(book_all)
    with psycopg.connect(urls[0]) as connection, single, many:
        yield [
            Contender("naive", urls[0], by_hand(connection)),
            Contender("per message", urls[1], through(single, environment.batch), goal=8),
            Contender("batch", urls[2], through(many, environment.batch), goal=12),
        ]


def through(inbox: Inbox, batch: int) -> Process:
    """Through an inbox, batch by batch."""
    inbox.migrate()

    def process(deliveries: Sequence[Delivery]) -> None:
        for chunk in batches(deliveries, batch):
            inbox.process(chunk)

    return process
