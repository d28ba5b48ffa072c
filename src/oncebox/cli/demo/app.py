"""The inbox of the demo, which books payments: all the code that a user writes."""

from __future__ import annotations

import os
from datetime import timedelta

import msgspec

from oncebox import BusinessKey, Inbox, Retry, Transaction
from oncebox.cli.demo.stream import print_receipt


class Payment(msgspec.Struct):
    """A payment from a shop. A double click sends it twice, with two event ids."""

    id: str
    order: str
    account: str
    cents: int


inbox = Inbox(
    "payments",
    os.environ.get("ONCEBOX_DEMO_DATABASE", "sqlite:///demo.db"),
    identity=BusinessKey("order", type="type", key="account"),
    retry=Retry(max_attempts=3, initial_delay=timedelta(milliseconds=100)),
    transaction_timeout=timedelta(seconds=3),
)


@inbox.on("payment.made")
def book(payment: Payment, tx: Transaction) -> None:
    """Book a payment. Fails if the account does not exist, by the foreign key of the ledger."""
    tx.execute(
        "INSERT INTO ledger (event_id, order_number, account, cents) "
        "VALUES (:event, :order, :account, :cents)",
        event=payment.id,
        order=payment.order,
        account=payment.account,
        cents=payment.cents,
    )
    tx.execute(
        "UPDATE accounts SET cents = cents + :cents WHERE name = :account",
        account=payment.account,
        cents=payment.cents,
    )
    print_receipt()
