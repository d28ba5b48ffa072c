"""A user's own connection in a user's own transaction, for tests of claim() and failed()."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg

from oncebox import Inbox
from support.worlds import SQLALCHEMY, World


class Caller:
    """A user's own connection in a user's own transaction, sync or async."""

    def __init__(self, world: World, inbox: Inbox) -> None:
        self.world = world
        self.inbox = inbox
        self.connection: Any = None

    def claim(self, id: str | uuid.UUID, **properties: Any) -> bool:
        if self.world.is_async:
            return bool(self.world.run(self.inbox.aclaim(self.connection, id, **properties)))
        return self.inbox.claim(self.connection, id, **properties)

    def claim_many(self, messages: Any, **options: Any) -> list[bool]:
        if self.world.is_async:
            steps = self.inbox.aclaim_many(self.connection, messages, **options)
            return list(self.world.run(steps))
        return self.inbox.claim_many(self.connection, messages, **options)

    def failed(
        self, id: str | uuid.UUID, error: BaseException, **properties: Any
    ) -> timedelta | None:
        if self.world.is_async:
            steps = self.inbox.afailed(self.connection, id, error, **properties)
            delay: timedelta | None = self.world.run(steps)
            return delay
        return self.inbox.failed(self.connection, id, error, **properties)

    def call(self, result: Any) -> Any:
        return self.world.run(_awaited(result)) if self.world.is_async else result

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def begin(self) -> None:
        """Begin the next transaction, where the connection does not do that by itself."""
        if self.world.name in SQLALCHEMY:
            self.call(self.connection.begin())

    def _end(self, how: str) -> None:
        if self.world.name.startswith("django"):
            getattr(self.connection, how)()
            self.connection.in_atomic_block = True
        else:
            self.call(getattr(self.connection, how)())


async def _awaited(result: Any) -> Any:
    return await result


def connected(caller: Caller) -> Iterator[Caller]:
    world = caller.world
    if world.name.startswith("django"):
        yield from _django(caller)
        return
    if world.name == "sqlite3":
        caller.connection = sqlite3.connect(world.url.removeprefix("sqlite:///"))
    elif world.name == "aiosqlite":
        import aiosqlite

        caller.connection = caller.call(aiosqlite.connect(world.url.removeprefix("sqlite:///")))
    elif world.name in SQLALCHEMY:
        caller.connection = caller.call(world.database().connect())
        caller.call(caller.connection.begin())
    elif world.is_async:
        caller.connection = caller.call(psycopg.AsyncConnection.connect(world.url))
    else:
        caller.connection = psycopg.connect(world.url)
    yield caller
    caller.call(caller.connection.close())


def _django(caller: Caller) -> Iterator[Caller]:
    from django.db import connections, transaction

    alias = caller.world.database().alias
    caller.connection = connections[alias]
    block = transaction.Atomic(alias, savepoint=False, durable=False)

    def end(how: str) -> None:
        error = RuntimeError() if how == "rollback" else None
        block.__exit__(RuntimeError if error else None, error, None)
        block.__enter__()

    caller._end = end  # type: ignore[method-assign]
    block.__enter__()
    yield caller
    block.__exit__(RuntimeError, RuntimeError(), None)
