"""One transaction on a SQLite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from oncebox.errors import ConfigurationError, TransactionLost
from oncebox.storage.contract import Guard
from oncebox.storage.drivers.parameters import for_handler, translate
from oncebox.storage.drivers.savepoints import savepoint_name
from oncebox.storage.drivers.sqlite.guarded import BEGIN
from oncebox.storage.steps import Call, Steps

_inside: ContextVar[frozenset[Path]] = ContextVar("oncebox_sqlite_files", default=frozenset())
"""The files that this thread or task is writing to now."""


class SqliteWork:
    """One transaction on one SQLite connection."""

    is_exposed = False
    guard: Guard | None = None
    is_doubtful = False

    def __init__(self, connection: Any = None, raw: Any = None) -> None:
        self.connection = connection
        self.raw = raw
        """The sqlite3 connection; the one of aiosqlite belongs to another thread."""
        self.is_clean = True
        """True if the connection is not in a transaction and has its original settings."""
        self._is_inside = False
        self._savepoints = 0

    # -- the transaction ------------------------------------------------------------------------

    def begin(self, within: float | None = None) -> Steps[None]:
        if self.raw.path in _inside.get():
            raise ConfigurationError(
                "a handler must not call process() on an inbox in the same SQLite file: it would "
                "wait forever for its own transaction. Call it after the handler has returned"
            )
        self.is_clean = False
        self._is_inside = True
        _inside.set(_inside.get() | {self.raw.path})
        yield partial(self.connection.execute, BEGIN)

    def leave_file(self) -> None:
        """Allow this thread or task to begin another transaction on the file."""
        if self._is_inside:
            _inside.set(_inside.get() - {self.raw.path})
            self._is_inside = False

    def enter_savepoint(self) -> Steps[None]:
        yield from self._control(f"SAVEPOINT {savepoint_name(self._savepoints)}")
        self._leave(self._savepoints + 1)

    def release_savepoint(self, *, wait: bool = True) -> Steps[None]:
        self._check()
        depth = self._savepoints - 1
        if depth == 0:
            self.raw.close_cursors()
        yield from self._control(f"RELEASE SAVEPOINT {savepoint_name(depth)}")
        self._leave(depth)

    def rollback_deferred(self, error: BaseException) -> Steps[bool]:
        """Nothing is deferred: without a pipeline, errors are raised at once."""
        yield from ()
        return False

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        self._check()
        depth = self._savepoints - 1
        if depth == 0:
            self.raw.close_cursors()
        yield from self._control(f"ROLLBACK TO SAVEPOINT {savepoint_name(depth)}")
        yield from self._control(f"RELEASE SAVEPOINT {savepoint_name(depth)}")
        self._leave(depth)
        return True

    def _leave(self, depth: int) -> None:
        self._savepoints = depth
        self.raw.guarded = depth > 0

    def after_handler(self) -> Steps[None]:
        self._check()
        yield from ()

    def commit(self) -> Steps[None]:
        self._check()
        if self.guard is not None:
            yield from self.execute(*self.guard)
        # Not as a statement: sqlite3 would cache it, and a cached COMMIT passes the authorizer when
        # a handler executes it.
        yield self.connection.commit
        self.is_clean = True

    def rollback(self) -> Steps[None]:
        self.is_clean = False
        self.raw.guarded = False
        self._savepoints = 0
        with suppress(Exception):  # is_clean stays False, so release() closes the connection
            self.raw.close_cursors()
            yield self.connection.rollback
            self.is_clean = not self._is_changed()

    def is_lost(self, error: BaseException) -> bool:
        return False

    def _control(self, sql: str) -> Steps[None]:
        self.raw.guarded = False
        yield partial(self.connection.execute, sql)

    def _is_changed(self) -> bool:
        return self.raw.isolation_level != "IMMEDIATE" or _autocommit_changed(self.raw)

    def _check(self) -> None:
        # Like _is_changed(), without the call: this runs once per message.
        if self.raw.isolation_level != "IMMEDIATE" or _autocommit_changed(self.raw):
            raise TransactionLost(
                "the handler changed isolation_level or autocommit of the connection: leave them "
                "unchanged"
            )
        if not self.raw.in_transaction:
            raise TransactionLost

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "qmark")
        return (yield partial(self.connection.query, statement.sql, statement.pick(params)))  # type: ignore[no-any-return]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, "qmark")
        yield partial(self.connection.query, statement.sql, statement.pick(params))

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "qmark")
        bound = [statement.pick(row) for row in rows]
        yield partial(self.connection.executemany, statement.sql, bound)

    # -- handlers' statements -------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        statement = for_handler(sql, "qmark")
        if not self.raw.in_transaction:
            raise TransactionLost
        return partial(self.connection.execute, statement.sql, statement.bind(params))

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        statement = for_handler(sql, "qmark")
        self._check()
        bound = [statement.bind(row) for row in rows]
        return partial(self.connection.executemany, statement.sql, bound)

    def hold(self, result: object) -> None:
        """Nothing to do: every statement has its own cursor."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        return (yield handle.fetchall)  # type: ignore[no-any-return]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle.rowcount  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        raise ConfigurationError(
            "tx.session needs SQLAlchemy: create the inbox with an Engine or a "
            "sqlite+pysqlite:// URL"
        )


_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the default; new in Python 3.12


def _autocommit_changed(connection: Any) -> bool:
    return getattr(connection, "autocommit", _LEGACY) != _LEGACY
