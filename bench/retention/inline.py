"""Inline: processes that take payments as fast as they can, each for accounts of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.drain.oncebox import NAME
from bench.drain.worker_pool import Drain
from bench.work import book
from bench.workload import ACCOUNTS, Stream
from oncebox import Inbox
from oncebox.model.outcome import Kind

SHARE = 100
"""Accounts of a process, as those of a partition."""
WORKER = "CREATE SEQUENCE worker MINVALUE 0"
BOOKED = """
SELECT count(*), count(DISTINCT message_id), sum(amount), (SELECT sum(balance) FROM accounts),
       (SELECT count(*) FROM oncebox_inbox WHERE received_at > now() - interval '1 day')
FROM ledger"""


def create(url: str) -> None:
    """The tables of oncebox; those of the business are there."""
    Inbox(NAME, url).migrate()
    with psycopg.connect(url) as connection:
        connection.execute(WORKER)


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """Process a batch of new payments at a time, a handler per message, 20 % duplicates."""
    with psycopg.connect(url) as connection:
        number = connection.execute("SELECT nextval('worker')").fetchall()[0][0]
    accounts = ACCOUNTS[number * SHARE :][:SHARE]
    stream = Stream(number, accounts=accounts, clock=time.time_ns() // 1_000_000)
    inbox = Inbox(NAME, url)
    inbox.on("payment")(book)
    with inbox:

        def step() -> int:
            kinds = [outcome.kind for outcome in inbox.process(stream.take(batch))]
            return sum(kind in (Kind.done, Kind.duplicate) for kind in kinds)

        yield step


class WrongResult(Exception):
    """A payment was lost or booked twice."""


def check(url: str) -> None:
    """Raise unless every message that was taken in was booked once."""
    with psycopg.connect(url) as connection:
        lines, messages, amount, balance, taken = connection.execute(BOOKED).fetchall()[0]
    if not lines == messages == taken or amount != balance:
        raise WrongResult(
            f"{taken} messages were taken in, {lines} lines for {messages} of them were booked, "
            f"{amount} in all, and the balances are {balance}"
        )
