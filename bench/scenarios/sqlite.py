"""SQLite with a write-ahead log and synchronous=FULL: every commit is on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.scenarios.psycopg import through
from bench.work import book
from bench.workload import Payment, per_account, read
from oncebox import Delivery, Inbox, Transaction

INBOX = "INSERT INTO inbox (message_id, payload) VALUES (?, ?) ON CONFLICT DO NOTHING"
LEDGER = "INSERT INTO ledger (message_id, account, amount) VALUES (?, ?, ?)"
BALANCE = "UPDATE accounts SET balance = balance + ? WHERE name = ?"


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message, a handler per batch."""
    urls = [environment.sqlite() for _ in range(3)]
    single, many = Inbox("bench", urls[1]), Inbox("bench", urls[2])
    single.on("payment")(book)
    many.on("payment", batch=True)(book_all)
    with closing(connect(urls[0])) as connection, single, many:
        yield [
            Contender("naive", urls[0], by_hand(connection)),
            Contender("per message", urls[1], through(single, environment.batch), goal=6),
            Contender("batch", urls[2], through(many, environment.batch)),
        ]


def connect(url: str) -> sqlite3.Connection:
    """A connection as durable as those of oncebox."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def by_hand(connection: sqlite3.Connection) -> Process:
    """What people write: a transaction per message."""

    def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(INBOX, (payment.id, delivery.body)).rowcount:
                connection.execute(LEDGER, (payment.id, payment.account, payment.amount))
                connection.execute(BALANCE, (payment.amount, payment.account))
            connection.execute("COMMIT")

    return process


def book_all(payments: list[Payment], tx: Transaction) -> None:
    """The handler of a batch: all rows of a statement at once."""
    tx.execute_many(
        "INSERT INTO ledger (message_id, account, amount) VALUES (:id, :account, :amount)",
        [{"id": p.id, "account": p.account, "amount": p.amount} for p in payments],
    )
    tx.execute_many(
        "UPDATE accounts SET balance = balance + :amount WHERE name = :account",
        [{"account": name, "amount": amount} for name, amount in per_account(payments).items()],
    )
