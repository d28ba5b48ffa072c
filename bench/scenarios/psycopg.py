"""psycopg: a pipeline around the batch, against a transaction per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from bench.measure import Contender, Process
from bench.place import Place
from bench.workload import Payment, batches, read
from oncebox import Delivery, Inbox, Transaction

INBOX = "INSERT INTO inbox (message_id, payload) VALUES (%s, %s) ON CONFLICT DO NOTHING"
LEDGER = "INSERT INTO ledger (message_id, account, amount) VALUES (%s, %s, %s)"
BALANCE = "UPDATE accounts SET balance = balance + %s WHERE name = %s"

BATCH_LEDGER = """
INSERT INTO ledger (message_id, account, amount)
SELECT * FROM unnest(:ids::text[], :accounts::text[], :amounts::integer[])"""
BATCH_BALANCE = """
UPDATE accounts a SET balance = a.balance + s.amount
FROM (SELECT account, sum(amount) AS amount
      FROM unnest(:accounts::text[], :amounts::integer[]) AS u (account, amount)
      GROUP BY account) s
WHERE a.name = s.account"""


@contextmanager
def contenders(place: Place) -> Iterator[list[Contender]]:
    """By hand, a handler per message, a handler per batch."""
    urls = [place.postgres() for _ in range(3)]
    single, many = Inbox("bench", urls[1]), Inbox("bench", urls[2])
    single.on("payment")(book)
    many.on("payment", batch=True)(book_all)
    with psycopg.connect(urls[0]) as connection, single, many:
        yield [
            Contender("naive", urls[0], by_hand(connection)),
            Contender("per message", urls[1], through(single, place.batch), goal=8),
            Contender("batch", urls[2], through(many, place.batch), goal=12),
        ]


def by_hand(connection: psycopg.Connection) -> Process:
    """What people write: a transaction per message."""

    def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            if connection.execute(INBOX, (payment.id, delivery.body)).rowcount:
                connection.execute(LEDGER, (payment.id, payment.account, payment.amount))
                connection.execute(BALANCE, (payment.amount, payment.account))
            connection.commit()

    return process


def book(payment: Payment, tx: Transaction) -> None:
    """The handler of one message."""
    tx.execute(
        "INSERT INTO ledger (message_id, account, amount) VALUES (:id, :account, :amount)",
        id=payment.id,
        account=payment.account,
        amount=payment.amount,
    )
    tx.execute(
        "UPDATE accounts SET balance = balance + :amount WHERE name = :account",
        account=payment.account,
        amount=payment.amount,
    )


def book_all(payments: list[Payment], tx: Transaction) -> None:
    """The handler of a batch: two statements for all."""
    accounts = [payment.account for payment in payments]
    amounts = [payment.amount for payment in payments]
    ids = [payment.id for payment in payments]
    tx.execute(BATCH_LEDGER, ids=ids, accounts=accounts, amounts=amounts)
    tx.execute(BATCH_BALANCE, accounts=accounts, amounts=amounts)


def through(inbox: Inbox, batch: int) -> Process:
    """Through an inbox, batch by batch."""
    inbox.migrate()

    def process(deliveries: Sequence[Delivery]) -> None:
        for chunk in batches(deliveries, batch):
            inbox.process(chunk)

    return process
