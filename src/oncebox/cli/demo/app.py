"""The inbox of the demo, which books payments: all the code that a user writes."""

from __future__ import annotations

import os
from datetime import timedelta

import msgspec

from oncebox import BusinessKey, Inbox, Retry, Transaction


class Payment(msgspec.Struct):
    """A payment from a shop. A double click sends it twice, with two event ids."""

    order: str
    account: str
    cents: int


inbox = Inbox(
    "payments",
    os.environ.get("ONCEBOX_DEMO_DATABASE", "sqlite:///demo.db"),
    identity=BusinessKey("payment.order", type="type", key="payment.account", payload="payment"),
    retry=Retry(max_attempts=3, initial_delay=timedelta(milliseconds=200)),
    transaction_timeout=timedelta(seconds=5),
)


@inbox.on("payment.made")
def book(payment: Payment, tx: Transaction) -> None:
    """Book a payment. Fails if the account does not exist, by the foreign key of the ledger."""
    tx.execute(
        "INSERT INTO ledger (order_number, account, cents) VALUES (:order, :account, :cents)",
        order=payment.order,
        account=payment.account,
        cents=payment.cents,
    )
    tx.execute(
        "UPDATE accounts SET cents = cents + :cents WHERE name = :account",
        account=payment.account,
        cents=payment.cents,
    )
