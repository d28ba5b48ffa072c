"""Worlds: every database and adapter that oncebox works on, behind one face for the tests.

A test that takes the fixture `world` runs once per adapter: on those of `SOME` with `make test`, on
the others with `make slow`. Its handlers are generators, so that one text serves sync and async
adapters: `result = yield tx.execute(...)`, `rows = yield result.rows()`.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncebox import Delivery, Django, Inbox, Outcome
from support.databases import TABLES
from support.events import cloud_event

SYNC = (
    "sqlite3",
    "psycopg",
    "psycopg-unpiped",
    "sqlalchemy-psycopg",
    "sqlalchemy-pysqlite",
    "django-postgres",
    "django-sqlite",
)
ASYNC = (
    "aiosqlite",
    "psycopg-async",
    "sqlalchemy-psycopg-async",
    "sqlalchemy-asyncpg",
    "sqlalchemy-aiosqlite",
)
ALL = SYNC + ASYNC
ON_POSTGRES = tuple(name for name in ALL if any(p in name for p in ("psycopg", "pg", "postgres")))
ON_SQLITE = tuple(name for name in ALL if name not in ON_POSTGRES)
SQLALCHEMY = tuple(name for name in ALL if name.startswith("sqlalchemy"))
ORM_FREE = tuple(name for name in ALL if not name.startswith("sqlalchemy"))
BOTH = ("sqlite3", "psycopg")
SOME = (*BOTH, "django-sqlite", "sqlalchemy-asyncpg")
"""Each database and family of adapters once, sync and async: for what adapters do not influence."""
FEW = 4
"""A test of no more worlds is quick on all of them."""

MIGRATED = "migrated_postgres_url"
MIGRATIONS = ["0001_claims", "0002_processing"]


def quick(concerned: Collection[str]) -> Collection[str]:
    """The worlds of a test that are not slow, unless it names them itself."""
    chosen = concerned if len(concerned) <= FEW else [name for name in concerned if name in SOME]
    return chosen or concerned


class World:
    """One adapter on one empty database."""

    def __init__(self, name: str, url: str, *, migrated: bool = False) -> None:
        self.name = name
        self.url = url
        self.is_async = name in ASYNC
        self.is_postgres = url.startswith("postgresql")
        self.inboxes: list[Inbox] = []
        self._runner = asyncio.Runner() if self.is_async else None
        self._disposals: list[Callable[[], Any]] = []
        self._database: Any = None
        if not migrated:
            for table in TABLES:
                self.execute(table)

    # -- the inbox --------------------------------------------------------------------------------

    def database(self) -> Any:
        """What this adapter's users hand to an Inbox."""
        if self._database is None:
            self._database = self._make_database()
        return self._database

    def use_database(self, database: Any) -> None:
        """Hand this to the next inboxes; None: a new database of this adapter."""
        self._database = database

    def move_to(self, url: str) -> None:
        """Let the next inboxes and queries use another address."""
        self.url = url
        self._database = None

    def inbox(self, name: str = "billing", *, migrate: bool = True, **options: Any) -> Inbox:
        """An inbox of this world, with its tables."""
        if self.name == "psycopg-unpiped":
            options.setdefault("pipeline", False)
        inbox = Inbox(name, self.database(), **options)
        self.inboxes.append(inbox)
        if migrate:
            self.migrate(inbox)
        return inbox

    def migrate(self, inbox: Inbox, **options: bool) -> list[str]:
        return self.run(inbox.amigrate(**options)) if self.is_async else inbox.migrate(**options)

    def on(self, inbox: Inbox, type: str, handler: Callable[..., Any], **options: Any) -> None:
        """Register a handler, written as a generator or a function, sync or async."""
        inbox.on(type, **options)(self._adapted(handler))

    def process(self, inbox: Inbox, deliveries: Sequence[Delivery]) -> list[Outcome]:
        if self.is_async:
            outcomes: list[Outcome] = self.run(inbox.aprocess(deliveries))
            return outcomes
        return inbox.process(deliveries)

    def kinds(self, inbox: Inbox, deliveries: Sequence[Delivery]) -> list[str]:
        return [outcome.kind.value for outcome in self.process(inbox, deliveries)]

    def receive(self, inbox: Inbox, deliveries: Sequence[Delivery]) -> list[str]:
        outcomes = (
            self.run(inbox.areceive(deliveries)) if self.is_async else inbox.receive(deliveries)
        )
        return [outcome.kind.value for outcome in outcomes]

    def drain(self, inbox: Inbox, **options: Any) -> dict[str, int]:
        """How many messages had which outcome."""
        counts = self.run(inbox.adrain(**options)) if self.is_async else inbox.drain(**options)
        return {kind.value: count for kind, count in counts.items()}

    def run(self, coroutine: Any) -> Any:
        assert self._runner is not None
        return self._runner.run(coroutine)

    def _adapted(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isgeneratorfunction(handler):
            if not self.is_async:
                return handler

            async def plain(*args: Any) -> Any:
                return handler(*args)

            return _like(plain, handler)

        async def asynchronous(*args: Any) -> None:
            steps, answer = handler(*args), None
            try:
                while True:
                    step = steps.send(answer)
                    try:
                        answer = await step if inspect.isawaitable(step) else step
                    except Exception as error:
                        step = steps.throw(error)
                        answer = await step if inspect.isawaitable(step) else step
            except StopIteration:
                return

        def synchronous(*args: Any) -> None:
            steps, answer = handler(*args), None
            try:
                while True:
                    answer = steps.send(answer)
            except StopIteration:
                return

        return _like(asynchronous if self.is_async else synchronous, handler)

    # -- the truth, seen from outside -------------------------------------------------------------

    def execute(self, sql: str, *params: Any) -> None:
        """Execute on a connection of the test's own, and commit."""
        self.query(sql, *params)

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Query on a connection of the test's own; parameters are %s."""
        if self.is_postgres:
            with psycopg.connect(self.url) as connection:
                cursor = connection.execute(sql, params or None)
                return cursor.fetchall() if cursor.description else []
        path = self.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            rows = connection.execute(sql.replace("%s", "?"), params).fetchall()
            connection.commit()
            return rows

    def effects(self) -> list[str]:
        """The ids that handlers wrote down, in any order."""
        return sorted(row[0] for row in self.query("SELECT id FROM effects"))

    def states(self) -> dict[str, str]:
        """The state of every claimed message."""
        return dict(self.query("SELECT message_id, state FROM oncebox_message"))

    def pending(self) -> list[tuple[Any, ...]]:
        """What still has to run: id, attempts, and 'ready', 'retrying' or 'blocked'."""
        blocked = "'infinity'" if self.is_postgres else "9223372036854775807"
        return self.query(
            "SELECT message_id, attempts, CASE WHEN available_at IS NULL THEN 'ready' "
            f"WHEN available_at = {blocked} THEN 'blocked' ELSE 'retrying' END "
            "FROM oncebox_pending ORDER BY seq"
        )

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        for inbox in self.inboxes:
            self.run(inbox.aclose()) if self.is_async else inbox.close()
        for dispose in self._disposals:
            if self.is_async:
                self.run(dispose())
            else:
                dispose()
        self.inboxes.clear()
        self._disposals.clear()
        if self._runner is not None:
            self._runner.close()

    def _make_database(self) -> Any:
        kind = self.name
        if kind in ("sqlite3", "aiosqlite", "psycopg", "psycopg-unpiped", "psycopg-async"):
            return self.url
        if kind.startswith("django"):
            return self._make_django()
        return self._make_engine()

    def _make_engine(self) -> Any:
        from sqlalchemy import create_engine
        from sqlalchemy.ext.asyncio import create_async_engine

        driver = self.name.removeprefix("sqlalchemy-").removesuffix("-async")
        url = self.url.replace("://", f"+{driver}://", 1)
        engine: Any = create_async_engine(url) if self.is_async else create_engine(url)
        self._disposals.append(engine.dispose)
        return engine

    def _make_django(self) -> Any:
        from support.django_settings import add_database

        alias, remove = add_database(self.url)
        self._disposals.append(remove)
        return Django(alias)


def postgres_fixture(request: Any) -> str:
    """The fixture of a test's database: with tables, unless the test makes them itself."""
    return "postgres_url" if request.node.get_closest_marker("empty_database") else MIGRATED


def make_world(name: str, request: Any) -> Iterator[World]:
    """A world for one test; the body of a fixture."""
    fixture = postgres_fixture(request) if name in ON_POSTGRES else "sqlite_url"
    if name == "django-postgres":
        _skip_old_server(request.getfixturevalue("postgres").version)
    world = World(name, request.getfixturevalue(fixture), migrated=fixture == MIGRATED)
    try:
        yield world
    finally:
        world.close()


def _skip_old_server(version: str) -> None:
    """Newer versions of Django want newer servers than oncebox does."""
    from django.db.backends.postgresql.features import DatabaseFeatures

    oldest = (DatabaseFeatures.minimum_database_version or (0,))[0]
    if int(version.split(".")[0]) < oldest:
        pytest.skip(f"this version of Django needs PostgreSQL {oldest}")


def order(
    id: str, *, key: str | None = None, type: str = "order", data: Any = None, **more: Any
) -> Delivery:
    """A message to be processed; its effect is a row that bears its id."""
    return cloud_event(type, {"id": id} if data is None else data, id=id, key=key, **more)


def write_effect(payload: dict[str, Any], tx: Any) -> Iterator[Any]:
    """The handler of most tests: one row per message, in a table without a unique key."""
    yield tx.execute(
        "INSERT INTO effects (id, body) VALUES (:id, :body)", id=payload["id"], body=""
    )


def _like(wrapper: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    wrapper.__signature__ = inspect.signature(handler)  # type: ignore[attr-defined]
    wrapper.__qualname__ = handler.__qualname__
    wrapper.__wrapped__ = handler  # type: ignore[attr-defined]
    return wrapper
