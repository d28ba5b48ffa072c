"""Payments, booked in sets: one handler call and a few round trips for a whole batch."""

import os
from dataclasses import asdict, dataclass

import psycopg

from oncebox import Inbox, Transaction

DATABASE_URL = os.environ["DATABASE_URL"]

inbox = Inbox("payments", DATABASE_URL, notify=True)  # drainers begin as soon as there is work


@dataclass
class Payment:
    account: str
    cents: int


@inbox.on("payment.received", batch=True)
def book(payments: list[Payment], tx: Transaction) -> None:
    tx.execute_many(
        """insert into balances values (:account, :cents)
           on conflict (account) do update set cents = balances.cents + excluded.cents""",
        [asdict(payment) for payment in payments],
    )


if __name__ == "__main__":
    with psycopg.connect(DATABASE_URL) as database:
        database.execute(
            "create table if not exists balances (account text primary key, cents bigint not null)"
        )
