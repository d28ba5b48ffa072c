"""SQLAlchemy Core: text statements on the user's engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, text

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.scenarios.psycopg import through
from bench.workload import Payment, read
from oncebox import Delivery, Inbox, Transaction

INBOX = text(
    "INSERT INTO inbox (message_id, payload) VALUES (:id, :payload) ON CONFLICT DO NOTHING"
)
LEDGER = text("INSERT INTO ledger (message_id, account, amount) VALUES (:id, :account, :amount)")
BALANCE = text("UPDATE accounts SET balance = balance + :amount WHERE name = :account")


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message."""
    urls = [environment.postgres() for _ in range(2)]
    engines = [engine(url) for url in urls]
    inbox = Inbox("bench", engines[1])
    inbox.on("payment")(book)
    yield [
        Contender("naive", urls[0], by_hand(engines[0])),
        Contender("per message", urls[1], through(inbox, environment.batch), goal=2.5),
    ]
    for used in engines:
        used.dispose()


def engine(url: str) -> Engine:
    """An engine on psycopg."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def by_hand(engine: Engine) -> Process:
    """What people write: a transaction per message."""

    def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            with engine.begin() as connection:
                if connection.execute(INBOX, {"id": payment.id, "payload": delivery.body}).rowcount:
                    execute(connection, payment)

    return process


def book(payment: Payment, tx: Transaction) -> None:
    """The handler of one message."""
    execute(tx.connection, payment)


def execute(connection: Connection, payment: Payment) -> None:
    """The work itself, the same on both sides."""
    account, amount = payment.account, payment.amount
    connection.execute(LEDGER, {"id": payment.id, "account": account, "amount": amount})
    connection.execute(BALANCE, {"amount": amount, "account": account})
