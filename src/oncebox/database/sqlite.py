"""sqlite3, and aiosqlite: connections of our own to a file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from oncebox.database.guarded import BEGIN, GuardedConnection, connect
from oncebox.database.parameters import for_handler, translate
from oncebox.errors import (
    ConfigurationError,
    MissingExtra,
    NotInTransaction,
    TransactionLost,
)
from oncebox.store.contract import Call, Steps

OLDEST = (3, 37, 0)


_inside: ContextVar[frozenset[Path]] = ContextVar("oncebox_sqlite_files", default=frozenset())
"""The files whose turn this thread or task has at the moment."""


class SqliteDatabase:
    """A SQLite file and the connections to it that are not in use."""

    dialect = "sqlite"

    def __init__(self, path: str, *, is_async: bool = False) -> None:
        if sqlite3.sqlite_version_info < OLDEST:  # pragma: no cover - depends on the machine
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old: oncebox needs 3.37; use a newer "
                "Python, or pip install 'pysqlite3-binary' with SQLAlchemy"
            )
        self.path = Path(path)
        self.is_async = is_async
        self.sleep = asyncio.sleep if is_async else time.sleep
        self._idle: list[SqliteWork] = []
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, *, is_async: bool) -> SqliteDatabase:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`."""
        path = url.removeprefix("sqlite://")
        if not path.startswith("/") or path in ("/", "/:memory:"):
            raise ConfigurationError(
                f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db "
                "(a database in memory could not survive anything)"
            )
        return cls(path[1:], is_async=is_async)

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        with self._lock:
            idle, self._idle = self._idle, []
        for work in idle:
            yield work.connection.close

    def acquire(self) -> Steps[SqliteWork]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        raw: list[GuardedConnection] = []

        def connector() -> GuardedConnection:
            raw.append(connect(self.path))
            return raw[0]

        connection = yield _aiosqlite(connector) if self.is_async else connector
        return SqliteWork(connection, raw[0])

    def release(self, work: SqliteWork) -> Steps[None]:
        if work.broken:
            yield work.connection.close
        else:
            with self._lock:
                self._idle.append(work)

    def recover(self) -> Steps[None]:
        yield from self.close()

    def listen(self, channel: str) -> None:
        """This driver hears nothing; whoever waits looks by himself."""


def _aiosqlite(connector: Any) -> Any:
    try:
        import aiosqlite
    except ImportError as error:
        raise MissingExtra("aiosqlite", "aiosqlite") from error
    return lambda: aiosqlite.Connection(connector, iter_chunk_size=64)


class SqliteWork:
    """One transaction on one SQLite connection."""

    def __init__(self, connection: Any, raw: Any) -> None:
        self.connection = connection
        self.broken = False
        self._raw = raw
        """The sqlite3 connection; inside of aiosqlite it lives on a thread of its own."""
        self._savepoints = 0
        self._is_borrowed = False

    @classmethod
    def borrowed(cls, connection: Any) -> SqliteWork:
        """The caller's own connection, for a claim in the caller's transaction."""
        if isinstance(connection, sqlite3.Connection):
            begins = connection.in_transaction or _begins_by_itself(connection)
        else:  # aiosqlite: what sqlite3 would tell, it tells only on its own thread
            begins = connection.in_transaction or connection.isolation_level is not None
        if not begins:
            raise NotInTransaction
        work = cls(connection, connection)
        work._is_borrowed = True
        return work

    # -- the transaction ------------------------------------------------------------------------

    def begin(self) -> Steps[None]:
        if self._raw.path in _inside.get():
            raise ConfigurationError(
                "a handler must not process other messages on its own SQLite file: it would wait "
                "for itself, for ever"
            )
        yield partial(self.connection.execute, BEGIN)
        _inside.set(_inside.get() | {self._raw.path})

    def _leave_file(self) -> None:
        _inside.set(_inside.get() - {self._raw.path})

    def enter_savepoint(self) -> Steps[None]:
        yield from self._control(f"SAVEPOINT {_name(self._savepoints)}")
        self._leave(self._savepoints + 1)

    def release_savepoint(self) -> Steps[None]:
        self._check()
        depth = self._savepoints - 1
        if depth == 0:
            self._raw.close_cursors()
        yield from self._control(f"RELEASE SAVEPOINT {_name(depth)}")
        self._leave(depth)

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        self._check()
        depth = self._savepoints - 1
        if depth == 0:
            self._raw.close_cursors()
        yield from self._control(f"ROLLBACK TO SAVEPOINT {_name(depth)}")
        yield from self._control(f"RELEASE SAVEPOINT {_name(depth)}")
        self._leave(depth)
        return True

    def _leave(self, depth: int) -> None:
        self._savepoints = depth
        self._raw.guarded = depth > 0

    def after_handler(self) -> Steps[None]:
        self._check()
        yield from ()

    def commit(self, guard: str, params: Mapping[str, Any]) -> Steps[None]:
        self._check()
        yield from self.execute(guard, params)
        # Only by commit(): a COMMIT in the statement cache would be there for handlers too.
        yield self.connection.commit
        self._leave_file()

    def rollback(self) -> Steps[None]:
        self._raw.guarded = False
        self._savepoints = 0
        self._leave_file()
        try:
            self._raw.close_cursors()
            yield self.connection.rollback
        except Exception:
            self.broken = True

    def is_lost(self, error: BaseException) -> bool:
        return False

    def _control(self, sql: str) -> Steps[None]:
        self._raw.guarded = False
        yield partial(self.connection.execute, sql)

    def _check(self) -> None:
        if self._raw.isolation_level != "IMMEDIATE" or _autocommit_changed(self._raw):
            self.broken = True
            raise TransactionLost("the handler changed the connection's transaction mode")
        if not self._raw.in_transaction:
            raise TransactionLost

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "qmark")
        cursor = yield self.connection.cursor
        cursor.row_factory = None  # the caller's connection may have one
        yield partial(cursor.execute, statement.sql, statement.pick(params))
        if self._is_borrowed and not self.connection.in_transaction:
            raise NotInTransaction  # the first statement of a claim changes nothing
        return (yield cursor.fetchall)  # type: ignore[no-any-return]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        yield from self.fetch(sql, params)

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "qmark")
        bound = [statement.pick(row) for row in rows]
        yield partial(self.connection.executemany, statement.sql, bound)

    # -- handlers' statements -------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        statement = for_handler(sql, "qmark")
        if not self._raw.in_transaction:
            raise TransactionLost
        return partial(self.connection.execute, statement.sql, statement.bind(params))

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        statement = for_handler(sql, "qmark")
        self._check()
        bound = [statement.bind(row) for row in rows]
        return partial(self.connection.executemany, statement.sql, bound)

    def hold(self, result: object) -> None:
        """Every statement has a cursor of its own here."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        return (yield handle.fetchall)  # type: ignore[no-any-return]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle.rowcount  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        raise ConfigurationError(
            "tx.session needs SQLAlchemy: give the inbox an Engine or a sqlite+pysqlite:// URL"
        )


def _name(depth: int) -> str:
    return f"oncebox_work_{depth}"


_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the default; new in Python 3.12


def _autocommit_changed(connection: Any) -> bool:
    return getattr(connection, "autocommit", _LEGACY) != _LEGACY


def _begins_by_itself(connection: Any) -> bool:
    """Whether Python opens a transaction before a statement that writes."""
    if _autocommit_changed(connection):
        return not connection.autocommit
    return connection.isolation_level is not None
