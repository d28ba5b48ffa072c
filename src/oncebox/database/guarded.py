"""GuardedConnection: a sqlite3 connection that no handler can commit behind our back."""

from __future__ import annotations

import sqlite3
import weakref
from pathlib import Path
from typing import IO, Any

from oncebox.database.parameters import for_handler
from oncebox.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows: SQLite's own waiting has to do there
    fcntl = None  # type: ignore[assignment]

BUSY_TIMEOUT = 30.0

# The comment keeps this text apart from a handler's own BEGIN IMMEDIATE: a statement in sqlite3's
# cache is not shown to the authorizer again.
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
    """A connection that denies handlers the transaction, and waits its turn for the database.

    SQLite's own waiting starves: of eight writers one got 205 turns while another got one. A lock
    on a file beside the database is fair. It is taken by whatever thread executes BEGIN.
    """

    guarded = False
    """While a handler runs."""

    def attach_lock(self, path: Path) -> None:
        """Use this file as the queue in front of the database, and begin to guard."""
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

    # Cursors are tracked because one that was left open keeps its read snapshot: every later
    # BEGIN IMMEDIATE of this connection would fail, for ever.

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        cursor = super().cursor(*args, **kwargs)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql is BEGIN:
            self._wait_for_turn()
        cursor = super().execute(sql, *args)
        if cursor.description is not None:  # without rows there is nothing to keep open
            self._cursors.add(cursor)
        return cursor

    def close_cursors(self) -> None:
        """Close what handlers left open."""
        for cursor in list(self._cursors):
            cursor.close()
        self._cursors.clear()

    def commit(self) -> None:
        self._refuse("COMMIT")
        super().commit()
        self._give_up_turn()

    def _refuse(self, word: str) -> None:
        if self.guarded:
            for_handler(word, "qmark")

    def rollback(self) -> None:
        self._refuse("ROLLBACK")
        try:
            super().rollback()
        finally:
            self._give_up_turn()

    def close(self) -> None:
        super().close()
        if hasattr(self, "_lock"):
            self._lock.close()

    def _wait_for_turn(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _give_up_turn(self) -> None:
        if fcntl is not None and not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def connect(path: Path) -> GuardedConnection:
    """Open a database file: write-ahead log, every commit on disk, foreign keys enforced."""
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_TIMEOUT,
            # Not None: after a swallowed INSERT OR ROLLBACK the next statement would autocommit.
            # With IMMEDIATE Python begins a transaction first, and the authorizer denies that.
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
        raise ConfigurationError(f"{path} cannot use SQLite's write-ahead log (it says {mode!r})")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
