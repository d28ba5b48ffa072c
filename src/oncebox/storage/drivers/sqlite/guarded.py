"""A sqlite3 connection on which handlers cannot end the transaction."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from oncebox.errors import ConfigurationError
from oncebox.storage.drivers.parameters import StatementError, for_handler

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: SQLite's own busy timeout is used
    fcntl = None  # type: ignore[assignment]

BUSY_TIMEOUT = 30.0

# The comment makes this text differ from a handler's BEGIN IMMEDIATE: sqlite3 does not ask the
# authorizer again for a statement in its cache.
BEGIN = "BEGIN IMMEDIATE /* oncebox */"

_PROTECTED_PRAGMAS = frozenset(
    (
        "journal_mode",
        "synchronous",
        "locking_mode",
        "query_only",
        "foreign_keys",
        "defer_foreign_keys",
        "busy_timeout",
        "writable_schema",
    )
)


class GuardedConnection(sqlite3.Connection):
    """A connection that refuses transaction statements of handlers and queues for the write lock.

    SQLite's own waiting is unfair: of eight writers one wrote 205 times while another wrote once. A
    lock on a file next to the database is fair. The thread that executes BEGIN takes it.
    """

    guarded = False
    """True while a handler runs."""

    def attach_lock(self, path: Path) -> None:
        """Use this file as the queue of writers, and install the authorizer."""
        self.path = path
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self._lock: IO[bytes] = path.open("ab")
        self.set_authorizer(self._authorize)

    def _authorize(self, action: int, arg1: str | None, arg2: str | None, *_: Any) -> int:
        if not self.guarded:
            return sqlite3.SQLITE_OK
        denied = (
            action in (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
            or (action == sqlite3.SQLITE_SAVEPOINT and (arg2 or "").lower().startswith("oncebox"))
            or (
                action == sqlite3.SQLITE_PRAGMA
                and arg2 is not None
                and (arg1 or "").lower() in _PROTECTED_PRAGMAS
            )
        )
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    # Cursors are tracked because an open one keeps its read snapshot: every later BEGIN IMMEDIATE
    # of this connection would fail.

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        cursor = super().cursor(*args, **kwargs)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql is BEGIN:
            self._lock_file()
        cursor = super().execute(sql, *args)
        if cursor.description is not None:  # a cursor without rows is not open
            self._cursors.add(cursor)
        return cursor

    def query(self, sql: str, params: Sequence[Any]) -> list[Any]:
        """Execute one of our own statements and return all rows as tuples."""
        cursor = super().cursor()
        cursor.row_factory = None  # a handler may have set one for the connection
        cursor.execute(sql, params)
        return cursor.fetchall()

    def close_cursors(self) -> None:
        """Close the cursors that handlers left open."""
        for cursor in list(self._cursors):
            cursor.close()
        self._cursors.clear()

    def commit(self) -> None:
        self._refuse("COMMIT")
        super().commit()
        self._unlock_file()

    def _refuse(self, word: str) -> None:
        if self.guarded:
            for_handler(word, "qmark")

    def rollback(self) -> None:
        self._refuse("ROLLBACK")
        try:
            super().rollback()
        finally:
            self._unlock_file()

    def close(self) -> None:
        self.check_close()
        super().close()
        if hasattr(self, "_lock"):
            self._lock.close()

    def check_close(self) -> None:
        """Raise while a handler runs."""
        if self.guarded:
            raise StatementError(
                "a handler must not close the connection: its transaction also holds the claim. "
                "oncebox closes it"
            )

    def _lock_file(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _unlock_file(self) -> None:
        if fcntl is not None and not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def connect(path: Path) -> GuardedConnection:
    """Open a database file with write-ahead log, synchronous commits and foreign keys."""
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_TIMEOUT,
            # Not None: if a handler ignores the error of INSERT OR ROLLBACK, its next statement
            # would autocommit. With IMMEDIATE, Python sends BEGIN, which the authorizer denies.
            isolation_level="IMMEDIATE",
            factory=GuardedConnection,
            check_same_thread=False,  # one unit of work at a time, but not always on one thread
        )
    except sqlite3.OperationalError as error:
        raise ConfigurationError(f"cannot open the SQLite database {path}: {error}") from error
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: GuardedConnection, path: Path) -> None:
    connection.attach_lock(path.with_name(path.name + "-oncebox-lock"))
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigurationError(
            f"SQLite cannot use its write-ahead log for {path}, only journal_mode {mode!r}: move "
            "the file to a local disk"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
