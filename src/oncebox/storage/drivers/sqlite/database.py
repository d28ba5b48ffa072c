"""SQLite with sqlite3 and aiosqlite: the connections that oncebox opens to a file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from oncebox.errors import ConfigurationError, MissingExtra, SchemaMissing
from oncebox.storage.drivers.sqlite.guarded import GuardedConnection, connect
from oncebox.storage.drivers.sqlite.work import SqliteWork
from oncebox.storage.steps import Steps

__all__ = ["SqliteDatabase", "SqliteWork"]

OLDEST = (3, 37, 0)


class SqliteDatabase:
    """A SQLite file and its idle connections."""

    dialect = "sqlite"
    reads_without_transaction = True

    def __init__(self, path: str, *, is_async: bool = False) -> None:
        if sqlite3.sqlite_version_info < OLDEST:  # pragma: no cover - depends on the machine
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old, oncebox needs 3.37 or later: use a "
                "newer Python, or pip install 'pysqlite3-binary' with SQLAlchemy"
            )
        self.path = Path(path)
        self.is_async = is_async
        self.sleep = asyncio.sleep if is_async else time.sleep
        self.abandoned: list[Any] = []
        self._idle: list[tuple[Any, GuardedConnection]] = []
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, *, is_async: bool) -> SqliteDatabase:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`."""
        path = url.removeprefix("sqlite://")
        if not path.startswith("/") or path in ("/", "/:memory:"):
            raise ConfigurationError(
                f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db "
                "(a database in memory is lost when the process ends)"
            )
        return cls(path[1:], is_async=is_async)

    def check_file(self) -> Path:
        """The absolute path. Raises SchemaMissing without a file: only migrate() creates it."""
        path = self.path.absolute()
        if not path.exists():
            raise SchemaMissing(
                f"{path} does not exist (the current folder is {Path.cwd()}): run oncebox where it "
                "is, or migrate"
            )
        return path

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            yield connection.close

    def work(self) -> SqliteWork:
        return SqliteWork()

    # An idle connection holds no lock. If an interrupt loses one between the list and its work,
    # Python closes it.

    def acquire(self, work: SqliteWork) -> Steps[None]:
        with self._lock:
            if self._idle:
                work.connection, work.raw = self._idle.pop()
                return
        raw: list[GuardedConnection] = []

        def connector() -> GuardedConnection:
            raw.append(connect(self.path))
            return raw[0]

        connection = yield _aiosqlite(connector) if self.is_async else connector
        work.connection, work.raw = connection, raw[0]

    def release(self, work: SqliteWork) -> Steps[None]:
        work.leave_file()
        if not work.is_clean:
            work.raw.guarded = False
            yield work.connection.close  # ends the transaction and releases the lock
            work.connection = None
            return
        pair = work.connection, work.raw
        work.connection = None
        with self._lock:
            self._idle.append(pair)

    def recover(self) -> Steps[None]:
        yield from self.close()

    def renew(self, work: SqliteWork) -> Steps[None]:
        """Nothing to do: a file has no other server."""
        yield from ()

    def listen(self, channel: str) -> None:
        """Not supported: workers poll."""


def _aiosqlite(connector: Any) -> Any:
    try:
        from oncebox.storage.drivers.sqlite.guarded_async import AsyncGuardedConnection
    except ImportError as error:
        raise MissingExtra("aiosqlite", "aiosqlite") from error
    return lambda: AsyncGuardedConnection(connector, iter_chunk_size=64)
