"""The caller's sqlite3 or aiosqlite connection, for a claim in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from oncebox.errors import NotInTransaction
from oncebox.storage.drivers.parameters import translate
from oncebox.storage.steps import Steps

_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the default; new in Python 3.12


class BorrowedSqlite:
    """Executes statements in the caller's transaction, and changes nothing else."""

    __slots__ = ("_connection", "_is_async", "insert")

    guard: ClassVar[None] = None
    """The caller commits, so nothing guards the commit."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_async = not isinstance(connection, sqlite3.Connection)
        is_certain = connection.in_transaction or not self._is_async
        self.insert = self._insert if is_certain else None
        """Executes an INSERT, and returns True if it inserted a row. None if it is uncertain that
        the statement runs in a transaction."""
        if not connection.in_transaction and not self._begins_by_itself():
            raise NotInTransaction

    def _begins_by_itself(self) -> bool:
        """True if Python opens a transaction before a statement that writes, as far as is known."""
        if self._is_async:  # sqlite3 reads `autocommit` only on its own thread
            return self._connection.isolation_level is not None
        return _begins_by_itself(self._connection)

    def _insert(self, sql: str, params: Mapping[str, Any]) -> Steps[bool]:
        statement = translate(sql, "qmark")
        call = self._connection.execute
        cursor = yield partial(call, statement.sql, statement.pick(params))
        return cursor.rowcount > 0  # type: ignore[no-any-return]

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "qmark")
        if not self._is_async:
            args = statement.pick(params)
            return (yield partial(_fetch, self._connection, statement.sql, args))  # type: ignore[no-any-return]
        cursor = yield self._connection.cursor
        cursor.row_factory = None
        yield partial(cursor.execute, statement.sql, statement.pick(params))
        return (yield cursor.fetchall)  # type: ignore[no-any-return]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        yield from self.fetch(sql, params)
        if not self._connection.in_transaction:
            raise NotInTransaction  # the first statement of a claim changes nothing

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "qmark")
        bound = [statement.pick(row) for row in rows]
        yield partial(self._connection.executemany, statement.sql, bound)


def _fetch(connection: sqlite3.Connection, sql: str, args: Any) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's connection may have one
    return cursor.execute(sql, args).fetchall()


def _begins_by_itself(connection: Any) -> bool:
    """True if Python opens a transaction before a statement that writes."""
    autocommit = getattr(connection, "autocommit", _LEGACY)
    if autocommit != _LEGACY:
        return not autocommit
    return connection.isolation_level is not None
