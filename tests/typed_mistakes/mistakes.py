"""Mistakes that mypy and pyright must reject: each line that ends with `# rejected`, and no other.

tests/test_types.py runs both checkers on this file. It is never run.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import aiosqlite
import psycopg

from oncebox import AsyncTransaction, Delivery, Inbox, Transaction


@dataclass
class Order:
    id: str


inbox = Inbox("billing", "sqlite:///billing.db")

Inbox("billing", 42)  # rejected
Inbox("billing", sqlite3.connect("billing.db"))  # rejected
Inbox("billing", "sqlite:///billing.db", unknown_type="drop")  # rejected
Inbox("billing", "sqlite:///billing.db", keep_payloads=False)  # rejected


def three(order: Order, tx: Transaction, extra: int) -> None: ...


def no_argument() -> None: ...


async def sync_transaction(order: Order, tx: Transaction) -> None: ...


def async_transaction(order: Order, tx: AsyncTransaction) -> None: ...


def no_transaction(order: Order, connection: sqlite3.Connection) -> None: ...


def one_order(order: Order, tx: Transaction) -> None: ...


def orders(orders: list[Order], tx: Transaction) -> None: ...


inbox.on("order")(three)  # rejected
inbox.on("order")(no_argument)  # rejected
inbox.on("order")(sync_transaction)  # rejected
inbox.on("order")(async_transaction)  # rejected
inbox.on("order")(no_transaction)  # rejected
inbox.on("order", batch=True)(one_order)  # rejected
inbox.on("order", batch=True)(orders)
inbox.on("order")(one_order)
inbox.on(7)  # rejected
inbox.upcast("order", from_version=1)(three)  # rejected
inbox.around(three)  # rejected
inbox.around(no_argument)  # rejected


@inbox.on("order.paid")
def connection_of_psycopg(order: Order, tx: Transaction[psycopg.Connection]) -> None:
    tx.connection.cursor()
    tx.connection.cursr()  # rejected


def claim(file: sqlite3.Connection, afile: aiosqlite.Connection) -> None:
    inbox.claim(file, "id")
    inbox.claim("billing.db", "id")  # rejected
    inbox.claim(afile, "id")  # rejected
    inbox.aclaim(file, "id")  # rejected
    inbox.claim(file, "id", kye="order-17")  # rejected
    inbox.claim(file, 17)  # rejected
    inbox.process(Delivery(b""))  # rejected
    inbox.process([b""])  # rejected
