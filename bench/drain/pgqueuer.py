"""PGQueuer, as its README has it: an entrypoint per job, and its own loop in drain mode.

It keeps no order of keys, and a job's work is not in the transaction that finishes the job: what is
done twice after a crash is the handler's to notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool

from bench.drain import load as loads
from bench.drain.load import Load, Payment
from bench.drain.worker_pool import Drain

try:
    import pgqueuer
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.domain.types import QueueExecutionMode
    from pgqueuer.queries import Queries
except ImportError:
    pgqueuer = None

ENTRYPOINT = "payment"
CHUNK = 1000
WORK = "INSERT INTO ledger (message_id, account, n, amount) VALUES (%s, %s, %s, %s)"
LEFT = "SELECT count(*) FROM pgqueuer"


def missing() -> str | None:
    """Why it cannot be had, if so."""
    return "not installed" if pgqueuer is None else None


def create(url: str) -> None:
    """The tables of both."""
    with psycopg.connect(url) as connection:
        loads.create(connection)

    async def install() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await Queries(PsycopgDriver(connection)).install()

    asyncio.run(install())


def fill(url: str, load: Load) -> None:
    """Replace what is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE ledger, pgqueuer, pgqueuer_log")
        rows = connection.execute(loads.MESSAGES, loads.parameters(load)).fetchall()
        payloads = [bytes(row[-1]) for row in rows]
        asyncio.run(_enqueue(url, payloads))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


async def _enqueue(url: str, payloads: list[bytes]) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        queries = Queries(PsycopgDriver(connection))
        for start in range(0, len(payloads), CHUNK):
            chunk = payloads[start : start + CHUNK]
            await queries.enqueue([ENTRYPOINT] * len(chunk), chunk, [0] * len(chunk))


def left(url: str) -> int:
    """How many messages are not done."""
    with psycopg.connect(url) as connection:
        return int(connection.execute(LEFT).fetchall()[0][0])


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """A connection for the queue, a pool for the work."""
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(url, autocommit=True))
        pool: Any = AsyncConnectionPool(
            url, min_size=4, max_size=4, open=False, kwargs={"autocommit": True}
        )
        runner.run(pool.open())
        yield lambda: runner.run(_drain(connection, pool, batch))
        runner.run(pool.close())
        runner.run(connection.close())


async def _drain(connection: Any, pool: Any, batch: int) -> int:
    """Until nothing is queued any more; how many jobs were done."""
    queue = pgqueuer.PgQueuer(PsycopgDriver(connection))
    decode = msgspec.json.Decoder(Payment).decode
    done = 0

    @queue.entrypoint(ENTRYPOINT)
    async def book(job: Any) -> None:
        nonlocal done
        payment = decode(job.payload)
        async with pool.connection() as business:
            await business.execute(WORK, (payment.id, payment.account, payment.n, payment.amount))
        done += 1

    await queue.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
    return done
