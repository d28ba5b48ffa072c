"""The caller's psycopg connection, for a claim in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from oncebox.errors import NotInTransaction
from oncebox.storage.drivers.parameters import translate
from oncebox.storage.steps import Steps


class BorrowedPsycopg:
    """Executes statements in the caller's transaction, and changes nothing else."""

    __slots__ = ("_connection", "_is_async")

    guard: ClassVar[None] = None
    """The caller commits, so nothing guards the commit."""

    def __init__(self, connection: Any) -> None:
        # In a pipeline the status lags behind: with autocommit, only a transaction that psycopg
        # knows of is accepted.
        status = connection.info.transaction_status if connection.autocommit else None
        if status is not None and status != TransactionStatus.INTRANS:
            raise NotInTransaction
        self._connection = connection
        self._is_async = isinstance(connection, psycopg.AsyncConnection)

    def _cursor(self) -> Any:
        # Not connection.cursor(): the caller's row factory or cursor class would change the rows.
        kind: Any = psycopg.AsyncCursor if self._is_async else psycopg.Cursor
        cursor = kind(self._connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        return cursor

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "binary")
        call = _afetch if self._is_async else _fetch
        args = statement.pick(params) or None
        return (yield partial(call, self._cursor(), statement.sql, args))  # type: ignore[no-any-return]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, "binary")
        yield partial(self._cursor().execute, statement.sql, statement.pick(params) or None)

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "binary")
        bound = [statement.pick(row) for row in rows]
        yield partial(self._cursor().executemany, statement.sql, bound)


def _fetch(cursor: Any, sql: str, args: Any) -> Any:
    return cursor.execute(sql, args).fetchall()


async def _afetch(cursor: Any, sql: str, args: Any) -> Any:
    await cursor.execute(sql, args)
    return await cursor.fetchall()
