"""Orders, kept in SQLite: nothing but oncebox and the standard library is needed."""

import os
import sqlite3
from dataclasses import asdict, dataclass

from oncebox import Inbox, Transaction

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///orders.db")

inbox = Inbox("orders", DATABASE_URL)


@dataclass
class Placed:
    number: str
    customer: str
    cents: int


@dataclass
class Cancelled:
    number: str


@inbox.on("order.placed")
def place(order: Placed, tx: Transaction) -> None:
    tx.execute("insert into orders values (:number, :customer, :cents, 'open')", **asdict(order))


@inbox.on("order.cancelled")
def cancel(order: Cancelled, tx: Transaction) -> None:
    tx.execute("update orders set state = 'cancelled' where number = :number", number=order.number)


if __name__ == "__main__":
    with sqlite3.connect(DATABASE_URL.removeprefix("sqlite:///")) as database:
        columns = "number text primary key, customer text, cents integer, state text"
        database.execute(f"create table if not exists orders ({columns})")
