"""The work with psycopg: by hand in a transaction per message, and in handlers."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from bench.measure import Process
from bench.workload import Payment, read
from oncebox import Delivery, Transaction

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
