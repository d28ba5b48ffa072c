"""Async psycopg: the same work as with psycopg, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from bench.environment import Environment
from bench.measure import Contender, Process
from bench.work import BALANCE, INBOX, LEDGER
from bench.workload import Payment, batches, read
from oncebox import AsyncTransaction, Delivery, Inbox


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """By hand, a handler per message."""
    urls = [environment.postgres() for _ in range(2)]
    inbox = Inbox("bench", urls[1])
    inbox.on("payment")(book)
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(urls[0]))
        runner.run(inbox.amigrate())
        yield [
            Contender("naive", urls[0], _in(runner, by_hand(connection))),
            Contender(
                "per message", urls[1], _in(runner, through(inbox, environment.batch)), goal=3
            ),
        ]
        runner.run(inbox.aclose())
        runner.run(connection.close())


AsyncProcess = Callable[[Sequence[Delivery]], Awaitable[None]]


def _in(runner: asyncio.Runner, process: AsyncProcess) -> Process:
    async def main(deliveries: Sequence[Delivery]) -> None:
        await process(deliveries)

    return lambda deliveries: runner.run(main(deliveries))


def by_hand(connection: psycopg.AsyncConnection) -> AsyncProcess:
    """What people write: a transaction per message."""

    async def process(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            payment = read(delivery)
            if (await connection.execute(INBOX, (payment.id, delivery.body))).rowcount:
                await connection.execute(LEDGER, (payment.id, payment.account, payment.amount))
                await connection.execute(BALANCE, (payment.amount, payment.account))
            await connection.commit()

    return process


async def book(payment: Payment, tx: AsyncTransaction) -> None:
    """The handler of one message."""
    await tx.execute(
        "INSERT INTO ledger (message_id, account, amount) VALUES (:id, :account, :amount)",
        id=payment.id,
        account=payment.account,
        amount=payment.amount,
    )
    await tx.execute(
        "UPDATE accounts SET balance = balance + :amount WHERE name = :account",
        account=payment.account,
        amount=payment.amount,
    )


def through(inbox: Inbox, batch: int) -> AsyncProcess:
    """Through an inbox, batch by batch."""

    async def process(deliveries: Sequence[Delivery]) -> None:
        for chunk in batches(deliveries, batch):
            await inbox.aprocess(chunk)

    return process
