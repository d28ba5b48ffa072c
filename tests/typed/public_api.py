"""Every public name as users write it. mypy and pyright check this file; it is never run.

pyright is strict here: a public name whose type is unknown or partly unknown is an error.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, assert_type

import aiosqlite
import psycopg
import psycopg_pool
import sqlalchemy as sa
from django.db import connection as django_connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from oncebox import (
    AsyncResult,
    AsyncTransaction,
    BusinessKey,
    CloudEvents,
    Consumer,
    Coordinates,
    DeadLetter,
    Debezium,
    Delivery,
    Django,
    Gaps,
    Headers,
    Identity,
    Inbox,
    Json,
    KafkaKey,
    Kind,
    Message,
    OnceboxError,
    Ordering,
    Outcome,
    Reason,
    Reject,
    Result,
    Retention,
    Retry,
    RetryAfter,
    SqlAlchemy,
    Transaction,
    Worker,
    source_of,
)
from oncebox.testing import (
    TemporaryDatabase,
    adeliver,
    assert_kinds,
    deliver,
    disturbed,
    event,
    use_database,
)


def notify_operator(letter: DeadLetter) -> None:
    """A function for on_dead."""
    assert_type(letter.id, int)
    assert_type(letter.payload, bytes)


def identities() -> list[Identity]:
    """Every kind of identity."""
    return [
        BusinessKey("order_id"),
        CloudEvents(),
        Coordinates(),
        Debezium(),
        Headers("message-id"),
        Json("id"),
        KafkaKey(),
    ]


def inboxes() -> list[Inbox]:
    """Every policy, and every kind of database that is not a URL."""
    configured = Inbox(
        "billing",
        "sqlite:///billing.db",
        identity=Json("id"),
        retry=Retry(max_attempts=3, initial_delay=timedelta(seconds=1)),
        ordering=Ordering.strict,
        on_dead=notify_operator,
        retention=Retention(days=30),
        gaps=Gaps(then="hold"),
    )
    return [configured, Inbox("billing", Django("default")), Inbox("billing", SqlAlchemy(None))]


def register(inbox: Inbox) -> None:
    """Sync and async handlers."""

    @inbox.on("order.confirmed", retry=Retry(), ordering=Ordering.skip_dead)
    def handle(payload: dict[str, int], tx: Transaction) -> None:
        assert_type(tx.message, Message)
        assert_type(tx.execute("select 1"), Result)
        assert_type(tx.execute("select 1").rows(), list[Any])
        assert_type(tx.execute("select 1").rowcount, int)
        with tx.savepoint():
            tx.execute_many("insert into t values (:id)", [{"id": 1}])
        if not payload:
            raise Reject("empty")
        raise RetryAfter(timedelta(seconds=5))

    @inbox.on("order.cancelled")
    async def ahandle(payload: dict[str, int], tx: AsyncTransaction) -> None:
        result = await tx.execute("select 1")
        assert_type(result, AsyncResult)
        assert_type(await result.rows(), list[Any])
        assert_type(tx.execute_many("delete from t", []), Awaitable[None])

    handle({}, _unknown())
    inbox.ignore("order.viewed")


def register_with_connections(inbox: Inbox) -> list[Coroutine[Any, Any, None]]:
    """The types of tx.connection and tx.session, and batch handlers."""

    @inbox.on("a")
    def with_psycopg(payload: bytes, tx: Transaction[psycopg.Connection[Any]]) -> None:
        assert_type(tx.connection, psycopg.Connection[Any])

    @inbox.on("b")
    def with_session(payload: bytes, tx: Transaction[sa.Connection, Session]) -> None:
        assert_type(tx.connection, sa.Connection)
        assert_type(tx.session, Session)

    @inbox.on("c")
    async def with_async_session(
        payload: bytes, tx: AsyncTransaction[AsyncConnection, AsyncSession]
    ) -> None:
        assert_type(tx.session, AsyncSession)

    @inbox.on("d", batch=True)
    def batch(payloads: list[dict[str, int]], tx: Transaction) -> None: ...

    @inbox.on("e", batch=True)
    async def abatch(payloads: list[Message]) -> None: ...

    @inbox.around
    def hook(tx: Transaction) -> Iterator[None]:
        assert_type(tx.messages, Sequence[Message])
        yield

    @inbox.around
    async def ahook(tx: AsyncTransaction) -> AsyncIterator[None]:
        yield

    hook(_unknown())
    ahook(_unknown())

    @inbox.upcast("d", from_version=1)
    def upcast(old: dict[str, int]) -> dict[str, int]:
        return old

    assert_type(upcast({}), dict[str, int])
    with_psycopg(b"", _unknown())
    with_session(b"", _unknown())
    batch([], _unknown())
    return [with_async_session(b"", _unknown()), abatch([])]


def claim(
    inbox: Inbox,
    file: sqlite3.Connection,
    connection: psycopg.Connection[Any],
    session: Session,
    engine: sa.Engine,
) -> None:
    """Every kind of connection for claim(), and engines and pools for an inbox."""
    for one in (file, connection, session, engine.connect(), django_connection):
        assert_type(inbox.claim(one, "id", origin="shop"), bool)
    assert_type(inbox.claim_many(file, ["id"]), list[bool])
    assert_type(inbox.failed(session, "id", ValueError()), timedelta | None)
    Inbox("billing", engine)
    Inbox("billing", psycopg_pool.ConnectionPool())
    Inbox("billing", psycopg_pool.AsyncConnectionPool())


async def aclaim(
    inbox: Inbox,
    file: aiosqlite.Connection,
    connection: psycopg.AsyncConnection[Any],
    session: AsyncSession,
    engine: AsyncEngine,
) -> None:
    """Every kind of connection for aclaim()."""
    for one in (file, connection, session, engine.connect()):
        assert_type(await inbox.aclaim(one, "id"), bool)
    assert_type(await inbox.aclaim_many(file, ["id"]), list[bool])
    assert_type(await inbox.afailed(session, "id", ValueError()), timedelta | None)
    Inbox("billing", engine)


def process(inbox: Inbox) -> None:
    """The sync methods."""
    try:
        assert_type(inbox.migrate(), list[str])
        outcomes = inbox.process([Delivery(b"{}", key="order-1")])
        assert_type(outcomes, list[Outcome])
        assert_type(outcomes[0].kind, Kind)
        assert_type(outcomes[0].reason, Reason | None)
        assert_type(outcomes[0].message, Message | None)
        assert_type(inbox.receive([]), list[Outcome])
        assert_type(inbox.drain(batch=10), Counter[Kind])
    except OnceboxError as error:
        print(error)
    with inbox as opened:
        assert_type(opened, Inbox)


async def aprocess(inbox: Inbox) -> None:
    """The async methods."""
    assert_type(await inbox.amigrate(), list[str])
    assert_type(await inbox.aprocess([Delivery(b"{}")]), list[Outcome])
    assert_type(await inbox.areceive([]), list[Outcome])
    assert_type(await inbox.adrain(), Counter[Kind])
    async with inbox as opened:
        assert_type(opened, Inbox)


def serve(inbox: Inbox) -> None:
    """The services."""
    Consumer(inbox, source_of("file:///orders.jsonl"), batch=10).run()
    Worker(inbox, poll=0.5).run()


def check(inbox: Inbox, engine: sa.Engine) -> None:
    """The helpers for tests."""
    delivery = event(inbox, "order.confirmed", {"id": 1}, key="k", redelivered=True)
    assert_type(delivery, Delivery)
    assert_type(event(Json("id"), data=[1]), Delivery)
    with TemporaryDatabase(inbox, retry=Retry()) as database:
        assert_type(database.execute("select 1"), list[tuple[Any, ...]])
        assert_type(deliver(inbox, delivery, copies=2), list[Outcome])
    with use_database(inbox, engine) as moved:
        assert_type(moved, Inbox)
    assert_kinds([], done=0)
    assert_type(disturbed([delivery], seed=1), list[Delivery])


async def acheck(inbox: Inbox) -> None:
    """The async helpers for tests."""
    async with TemporaryDatabase(inbox, "postgresql://localhost/postgres") as database:
        assert_type(database.url, str)
        assert_type(await adeliver(inbox, event(inbox, "t")), list[Outcome])


def _unknown() -> Any: ...
