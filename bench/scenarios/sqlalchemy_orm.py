"""SQLAlchemy's ORM: one session and one flush per batch, against a session per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import BigInteger, Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.scenarios.psycopg import through
from bench.scenarios.sqlalchemy_core import INBOX, engine
from bench.workload import Payment, read
from oncebox import Delivery, Inbox, SqlAlchemy, Transaction


class Base(DeclarativeBase):
    """The business tables as classes."""


class Ledger(Base):
    """A payment that was booked."""

    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    message_id: Mapped[str]
    account: Mapped[str]
    amount: Mapped[int]


class Account(Base):
    """An account and its balance."""

    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message with one flush per batch."""
    urls = [environment.postgres() for _ in range(2)]
    engines = [engine(url) for url in urls]
    inbox = Inbox("bench", SqlAlchemy(engines[1], flush_once=True))
    inbox.on("payment")(book)
    yield [
        Contender("naive", urls[0], by_hand(engines[0])),
        Contender("one flush", urls[1], through(inbox, environment.batch), goal=3.5),
    ]
    for used in engines:
        used.dispose()


def by_hand(engine: Engine) -> Process:
    """What people write: a session and a transaction per message."""

    def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            with Session(engine) as session, session.begin():
                if (
                    session.connection()
                    .execute(INBOX, {"id": payment.id, "payload": delivery.body})
                    .rowcount
                ):
                    change(session, payment)

    return process


def book(payment: Payment, tx: Transaction) -> None:
    """The handler of one message."""
    change(tx.session, payment)


def change(session: Session, payment: Payment) -> None:
    """The work itself, the same on both sides."""
    session.add(Ledger(message_id=payment.id, account=payment.account, amount=payment.amount))
    account = session.get_one(Account, payment.account)
    account.balance += payment.amount
