"""SQLAlchemy 2, sync and async: the user's engine, Core and ORM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncebox.database import faults
from oncebox.database.parameters import Style, check_driver_statement, for_handler, translate
from oncebox.database.shared_session import SharedSession
from oncebox.errors import (
    ConfigurationError,
    NotInTransaction,
    SwallowedError,
    TransactionLost,
)
from oncebox.store.contract import Call, Steps

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}
_JOINED: dict[str, Any] = {"join_transaction_mode": "rollback_only"}
_STYLES: dict[str, Style] = {"qmark": "qmark", "numeric_dollar": "dollar"}


def dialect_of(thing: Any) -> str:
    """The dialect of an engine or a connection. Raises ConfigurationError for what has no store."""
    name = thing.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"oncebox works on PostgreSQL and SQLite, not on {name}")
    return _DIALECTS[name]


class SqlAlchemyDatabase:
    """An Engine or AsyncEngine.

    `flush_once`: the ORM's changes are written once per batch instead of after every message, and
    queries do not flush. Faster; but a handler's query does not see what earlier handlers changed,
    except through objects of the session.
    """

    def __init__(
        self, engine: Any, *, flush_once: bool = False, owned: bool = False, **session: Any
    ) -> None:
        self.engine = engine
        self.dialect = dialect_of(engine)
        self.is_async = isinstance(engine, AsyncEngine)
        self.sleep = asyncio.sleep if self.is_async else time.sleep
        self._flush_once = flush_once
        self._session_options = session
        self._owned = owned

    @classmethod
    def from_url(cls, url: str, *, is_async: bool) -> SqlAlchemyDatabase:
        """An engine of our own."""
        create = create_async_engine if is_async else sqlalchemy.create_engine
        try:
            return cls(create(url), owned=True)
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.InvalidRequestError) as error:
            raise ConfigurationError(f"the database URL cannot be used: {error}") from error

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        if self._owned:
            yield self.engine.dispose

    def acquire(self) -> Steps[SqlAlchemyWork]:
        connection = yield self.engine.connect
        return SqlAlchemyWork(
            connection, flush_once=self._flush_once, session_options=self._session_options
        )

    def release(self, work: SqlAlchemyWork) -> Steps[None]:
        yield work.connection.close

    def recover(self) -> Steps[None]:
        """SQLAlchemy throws away its other old connections when it sees one break."""
        yield from ()

    def listen(self, channel: str) -> None:
        """This driver hears nothing; whoever waits looks by himself."""


class SqlAlchemyWork:
    """One transaction on one SQLAlchemy connection."""

    def __init__(
        self,
        connection: Any,
        *,
        flush_once: bool = False,
        session_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.connection = connection
        self._is_async = isinstance(connection, AsyncConnection)
        self._sync: sqlalchemy.Connection = (
            connection.sync_connection if self._is_async else connection
        )
        self._style: Style = _STYLES.get(self._sync.dialect.paramstyle, "format")
        self._flush_once = flush_once
        self._session_options = dict(session_options or {})
        self._session: Any = None
        self._checked = ""
        self._root: Any = None
        self._nested: list[Any] = []
        self._ours = True
        """Whether what happens now to the transaction is our own doing, or a handler's."""

    @classmethod
    def borrowed(cls, connection: Any) -> SqlAlchemyWork:
        """The caller's own connection, for a claim in the caller's transaction."""
        work = cls(connection)
        if not connection.in_transaction():
            raise NotInTransaction("claim() needs an open transaction: use connection.begin()")
        if work._commits_by_itself():
            raise NotInTransaction
        return work

    def _commits_by_itself(self) -> bool:
        dbapi: Any = self._sync.connection.dbapi_connection
        if self._sync.dialect.name == "sqlite":
            return dbapi.isolation_level is None and not self._raw().in_transaction
        return getattr(dbapi, "autocommit", False) is True

    def _raw(self) -> Any:
        return self._sync.connection.driver_connection

    # -- the transaction ------------------------------------------------------------------------

    def begin(self) -> Steps[None]:
        self._root = yield self.connection.begin
        if self._sync.dialect.name == "sqlite" and not self._raw().in_transaction:
            # sqlite3 would begin only at the first write, and could find the database changed.
            yield partial(self.connection.exec_driver_sql, "BEGIN IMMEDIATE")
        if self._commits_by_itself():
            raise ConfigurationError("the engine is in AUTOCOMMIT mode: it has no transactions")
        for name in ("begin", "commit", "rollback"):
            event.listen(self._sync, name, self._refuse)
        event.listen(self._sync, "before_cursor_execute", self._check_statement)

    def _refuse(self, *_: Any) -> None:
        if not self._ours:
            raise TransactionLost

    def _check_statement(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        if not self._ours and statement is not self._checked:
            check_driver_statement(statement)

    def enter_savepoint(self) -> Steps[None]:
        # Ours outside, SQLAlchemy's inside: a failed flush or a handler's rollback() ends only the
        # inner one, and what the handler writes afterwards is still undone by the outer one.
        depth = len(self._nested)
        self._ours = True
        yield partial(self.connection.exec_driver_sql, f"SAVEPOINT oncebox_work_{depth}")
        self._nested.append((yield self.connection.begin_nested))
        self._ours = False

    def release_savepoint(self) -> Steps[None]:
        if self._session is not None:
            yield self._session.flush
        self._check()
        if len(self._nested) == 1:
            yield from self._close_session()
        self._ours = True
        yield self._nested[-1].commit
        depth = len(self._nested) - 1
        yield partial(self.connection.exec_driver_sql, f"RELEASE SAVEPOINT oncebox_work_{depth}")
        self._nested.pop()
        self._ours = len(self._nested) == 0

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        self._ours = True
        flushing = self._flush_once and self._session is not None
        yield from self._close_session()
        nested = self._nested.pop()
        if not self._root_is_alive():
            raise TransactionLost from error
        if self._sync.get_nested_transaction() is not None:
            yield nested.rollback
        depth = len(self._nested)
        for verb in ("ROLLBACK TO", "RELEASE"):
            yield partial(self.connection.exec_driver_sql, f"{verb} SAVEPOINT oncebox_work_{depth}")
        self._ours = depth == 0
        return not flushing

    def after_handler(self) -> Steps[None]:
        # The ORM's changes are written now, so that an error is the message's own.
        if self._session is not None and not self._flush_once:
            yield self._session.flush
        self._check()

    def commit(self, guard: str, params: Mapping[str, Any]) -> Steps[None]:
        yield from self.execute(guard, params)
        yield self._root.commit
        self._forget()

    def rollback(self) -> Steps[None]:
        self._ours = True
        try:
            yield from self._close_session()
            alive = self._root_is_alive()
            self._forget()
            if alive:
                yield self._root.rollback
            elif self._root is None:  # nothing was begun: only read
                yield self.connection.rollback
            else:
                # The driver's connection may still be inside of the transaction: never to the pool.
                yield self.connection.invalidate
        except BaseException as error:
            yield self.connection.invalidate
            if not isinstance(error, Exception):
                raise

    def _forget(self) -> None:
        for name in ("begin", "commit", "rollback"):
            if event.contains(self._sync, name, self._refuse):
                event.remove(self._sync, name, self._refuse)
        if event.contains(self._sync, "before_cursor_execute", self._check_statement):
            event.remove(self._sync, "before_cursor_execute", self._check_statement)

    def is_lost(self, error: BaseException) -> bool:
        broken = isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
        return broken or self._sync.invalidated or faults.is_lost(error)

    def _root_is_alive(self) -> bool:
        if self._root is None or self._sync.invalidated or self._sync.closed:
            return False
        root = self._root.sync_transaction if self._is_async else self._root
        return bool(root.is_active) and self._sync.get_transaction() is root

    def _check(self) -> None:
        if not self._root_is_alive():
            raise TransactionLost
        if not self._nested[-1].is_active:
            raise SwallowedError("the handler rolled back its session, and with it the work so far")

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, self._style)
        result = yield partial(
            self.connection.exec_driver_sql, statement.sql, statement.pick(params)
        )
        return [tuple(row) for row in result.fetchall()]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, self._style)
        yield partial(self.connection.exec_driver_sql, statement.sql, statement.pick(params))

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        if rows:
            statement = translate(sql, self._style)
            bound = [statement.pick(row) for row in rows]
            yield partial(self.connection.exec_driver_sql, statement.sql, bound)

    # -- handlers' statements -------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        statement = for_handler(sql, self._style)
        self._checked = statement.sql
        return partial(self.connection.exec_driver_sql, statement.sql, statement.bind(params))

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        statement = for_handler(sql, self._style)
        bound = [statement.bind(row) for row in rows]
        if not bound:
            return partial(self.connection.exec_driver_sql, "SELECT 1")
        return partial(self.connection.exec_driver_sql, statement.sql, bound)

    def hold(self, result: object) -> None:
        """Every statement has a result of its own here."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        yield from ()
        return [tuple(row) for row in handle.fetchall()]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle.rowcount  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        if self._session is None:
            options = {"autoflush": not self._flush_once, **self._session_options}
            kind = SharedSession if self._flush_once else Session
            self._session = (
                AsyncSession(self.connection, sync_session_class=kind, **_JOINED, **options)
                if self._is_async
                else kind(self.connection, **_JOINED, **options)
            )
        return self._session

    def _close_session(self) -> Steps[None]:
        session, self._session = self._session, None
        if session is not None:
            (session.sync_session if self._is_async else session).ours = True
            yield session.close
