"""One transaction on a SQLAlchemy connection, for Core and ORM handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from oncebox.errors import (
    ConfigurationError,
    NotInTransaction,
    SwallowedError,
    TransactionEnded,
    TransactionLost,
)
from oncebox.storage.drivers import error_codes, pooler
from oncebox.storage.drivers.attached_work import AttachedWork
from oncebox.storage.drivers.parameters import Style, check_driver_statement, for_handler, translate
from oncebox.storage.drivers.savepoints import savepoint_name
from oncebox.storage.drivers.sqlalchemy.sessions import open_session
from oncebox.storage.drivers.transaction_state import has_ended
from oncebox.storage.steps import Call, Steps

_STYLES: dict[str, Style] = {"qmark": "qmark", "numeric_dollar": "dollar"}
"""The parameter styles by SQLAlchemy's names; `format` for all others."""


class SqlAlchemyWork(AttachedWork):
    """One transaction on one SQLAlchemy connection."""

    def __init__(
        self, *, flush_once: bool = False, session_options: Mapping[str, Any] | None = None
    ) -> None:
        self._sync: Any = None
        """The sync connection; with asyncio, the one inside the async connection."""
        self._is_async = False
        self._flush_once = flush_once
        self._session_options = dict(session_options or {})
        self._session: Any = None
        self._checked = ""
        self._root: Any = None
        self._driver: Any = None
        self._nested: list[Any] = []
        self._ours = True
        """True if oncebox acts on the transaction now, and not a handler."""

    def _prepare(self) -> None:
        self._is_async = isinstance(self.connection, AsyncConnection)
        self._sync = self.connection.sync_connection if self._is_async else self.connection
        self._style: Style = _STYLES.get(self._sync.dialect.paramstyle, "format")

    @classmethod
    def borrowed(cls, connection: Any) -> SqlAlchemyWork:
        """The work of a claim() in the caller's transaction, on the caller's connection."""
        work = cls()
        work.attach(lambda: connection)
        if not connection.in_transaction():
            raise NotInTransaction("claim() needs an open transaction: call connection.begin()")
        if work._commits_by_itself():
            raise NotInTransaction
        return work

    def _commits_by_itself(self) -> bool:
        dbapi: Any = self._sync.connection.dbapi_connection
        if self._sync.dialect.name == "sqlite":
            return dbapi.isolation_level is None and not self.driver_connection().in_transaction
        return getattr(dbapi, "autocommit", False) is True

    def driver_connection(self) -> Any:
        """The connection of the DB-API driver."""
        return self._sync.connection.driver_connection

    def stop_preparing(self) -> None:
        """Prepare no statements, if the driver decides that per connection: asyncpg does not."""
        driver = self.driver_connection()
        if hasattr(driver, "prepare_threshold"):
            pooler.stop_preparing(driver)

    # -- the transaction ------------------------------------------------------------------------

    def begin(self, within: float | None = None) -> Steps[None]:
        self.watch(self.driver_connection(), within)
        self._root = yield self.connection.begin
        if self._sync.dialect.name == "sqlite" and not self.driver_connection().in_transaction:
            # sqlite3 would begin at the first write, when another connection may have written.
            yield partial(self.connection.exec_driver_sql, "BEGIN IMMEDIATE")
        if self._commits_by_itself():
            raise ConfigurationError(
                "the engine is in AUTOCOMMIT mode, which has no transactions: create it with "
                "another isolation_level"
            )
        self._driver = self.driver_connection()
        for name, listener in self._listeners():
            event.listen(self._sync, name, listener)

    def _listeners(self) -> Iterator[tuple[str, Callable[..., None]]]:
        """The events of SQLAlchemy by which handlers are kept from ending the transaction."""
        for name in ("begin", "commit", "rollback"):
            yield name, self._refuse
        yield "before_cursor_execute", self._check_statement

    def allow_end(self) -> None:
        """Allow the end of the transaction: no handler runs any more."""
        self._ours = True

    def _refuse(self, *_: Any) -> None:
        if not self._ours:
            raise TransactionLost

    def _check_statement(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        if not self._ours and statement is not self._checked:
            check_driver_statement(statement)

    def enter_savepoint(self) -> Steps[None]:
        # Two savepoints, ours outside and SQLAlchemy's inside. A failed flush or a handler's
        # rollback() ends only the inner one, so the outer one still undoes what follows.
        depth = len(self._nested)
        self._ours = True
        yield partial(self.connection.exec_driver_sql, f"SAVEPOINT {savepoint_name(depth)}")
        self._nested.append((yield self.connection.begin_nested))
        self._ours = False

    def release_savepoint(self, *, wait: bool = True) -> Steps[None]:
        if self._session is not None:
            yield self._session.flush
        self._check()
        if len(self._nested) == 1:
            yield from self._close_session()
        self._ours = True
        yield self._nested[-1].commit
        depth = len(self._nested) - 1
        yield partial(self.connection.exec_driver_sql, f"RELEASE SAVEPOINT {savepoint_name(depth)}")
        self._nested.pop()
        self._ours = len(self._nested) == 0

    def rollback_deferred(self, error: BaseException) -> Steps[bool]:
        """Nothing is deferred: without a pipeline, errors are raised at once."""
        yield from ()
        return False

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
            yield partial(
                self.connection.exec_driver_sql, f"{verb} SAVEPOINT {savepoint_name(depth)}"
            )
        self._ours = depth == 0
        return not flushing

    def after_handler(self) -> Steps[None]:
        # Write the changes of the ORM now, so that an error is attributed to this message.
        if self._session is not None and not self._flush_once:
            yield self._session.flush
        self._check()

    def commit(self) -> Steps[None]:
        if self.guard is not None:
            yield from self.execute(*self.guard)
        yield self._root.commit
        self._remove_listeners()

    def rollback(self) -> Steps[None]:
        if self._sync is None:  # interrupted before anything began
            return
        self._ours = True
        try:
            yield from self._close_session()
            alive = self._root_is_alive() and not has_ended(self._driver) and not self.is_doubtful
            self._remove_listeners()
            if alive:
                yield self._root.rollback
            elif self._root is None and not self.is_doubtful:  # only reads, without begin()
                yield self.connection.rollback
            else:
                # The driver's connection may be closed, or still inside the transaction.
                yield from self._discard()
        except BaseException as error:
            yield from self._discard()
            if not isinstance(error, Exception):
                raise

    def _discard(self) -> Steps[None]:
        # A connection that the handler closed is back in the pool, which rolled it back.
        if not self._sync.closed:
            yield self.connection.invalidate

    def _remove_listeners(self) -> None:
        for name, listener in self._listeners():
            if event.contains(self._sync, name, listener):
                event.remove(self._sync, name, listener)

    def is_lost(self, error: BaseException) -> bool:
        broken = isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
        invalidated = self._sync is not None and self._sync.invalidated
        return broken or invalidated or error_codes.is_connection_lost(error)

    def _root_is_alive(self) -> bool:
        if self._root is None or self._sync.invalidated or self._sync.closed:
            return False
        root = self._root.sync_transaction if self._is_async else self._root
        return bool(root.is_active) and self._sync.get_transaction() is root

    def _check(self) -> None:
        if self._sync.closed:
            raise TransactionEnded("the handler closed the connection of its transaction")
        if not self._root_is_alive():
            raise TransactionLost
        if has_ended(self._driver):
            raise TransactionEnded
        if not self._nested[-1].is_active:
            raise SwallowedError(
                "the handler called session.rollback(), which undid its work: raise an exception "
                "instead"
            )

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, self._style)
        call = partial(self.connection.exec_driver_sql, statement.sql, statement.pick(params))
        if not self._is_async:
            return (yield partial(_fetch, call))  # type: ignore[no-any-return]
        return [tuple(row) for row in (yield call).fetchall()]

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
        """Nothing to do: every statement has its own result."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        yield from ()
        return [tuple(row) for row in handle.fetchall()]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle.rowcount  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        if self._session is None:
            self._session = open_session(
                self.connection, flush_once=self._flush_once, options=self._session_options
            )
        return self._session

    def _close_session(self) -> Steps[None]:
        session, self._session = self._session, None
        if session is not None:
            (session.sync_session if self._is_async else session).ours = True
            yield session.close


def _fetch(execute: Callable[[], Any]) -> list[Sequence[Any]]:
    """All rows of a statement. Closes its cursor even if a signal handler interrupts this."""
    result: Any = None
    try:
        result = execute()
        return [tuple(row) for row in result.fetchall()]
    finally:
        if result is not None:
            result.close()
