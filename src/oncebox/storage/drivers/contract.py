"""The contract of driver adapters: connections and transactions, sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from oncebox.storage.contract import Connection, Guard
from oncebox.storage.steps import Call, Steps


class Work(Connection, Protocol):
    """One transaction on one connection."""

    connection: Any
    """The driver's connection, for handlers that use it; None before acquire and after release."""

    is_exposed: bool
    """True if a handler got the driver's connection, and could end the transaction with it."""

    is_doubtful: bool
    """True if the connection must be closed, because an interrupt hit the driver."""

    guard: Guard | None
    """Fails unless this is still the transaction of the claim; None if no handler runs in it."""

    def begin(self, within: float | None = None) -> Steps[None]:
        """Begin the transaction.

        `within` is the time limit in seconds. Some seconds later the client closes the connection,
        in case the server no longer responds.
        """
        ...

    def enter_savepoint(self) -> Steps[None]:
        """Set a savepoint. Until it is released or rolled back, the code of a handler runs."""
        ...

    def release_savepoint(self, *, wait: bool = True) -> Steps[None]:
        """Keep the work since the savepoint. Errors of pipelined statements are raised here.

        Without `wait` they may be raised by the commit instead, which saves a round trip. Raises
        TransactionLost if the transaction has ended, SwallowedError if it is aborted.
        """
        ...

    def rollback_deferred(self, error: BaseException) -> Steps[bool]:
        """After the commit has failed: undo the work since a savepoint released without `wait`.

        The claim and its locks stay. Returns False if that is impossible.
        """
        ...

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        """Undo the work since the savepoint; the claim and its locks stay.

        Returns True if the handler that was called last certainly caused the error.
        """
        ...

    def after_handler(self) -> Steps[None]:
        """Raise those errors of a handler that are known without waiting for the server.

        Raises TransactionEnded if the handler ended the transaction or closed its connection.
        """
        ...

    def commit(self) -> Steps[None]:
        """Execute the guard, if there is one, and COMMIT; in one round trip if the driver can."""
        ...

    def rollback(self) -> Steps[None]:
        """Roll back; close the connection if its state is unknown."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """True if the connection is lost, and with it the transaction."""
        ...

    # -- for handlers -------------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        """The call that executes a handler's statement; it returns a handle for the result."""
        ...

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        """The call that executes a handler's statement once per row."""
        ...

    def rows(self, handle: Any) -> Steps[list[Any]]:
        """The rows of a result."""
        ...

    def rowcount(self, handle: Any) -> Steps[int]:
        """The number of rows that a statement changed or returned."""
        ...

    def hold(self, result: object) -> None:
        """Record the object that reads the latest result: while it exists, keep its handle."""
        ...

    @property
    def session(self) -> Any:
        """The ORM's session in this transaction."""
        ...


class PsycopgPool(Protocol):
    """A ConnectionPool or AsyncConnectionPool of psycopg."""

    def getconn(self, timeout: float | None = None) -> Any: ...

    def putconn(self, conn: Any) -> Any: ...


class SqlAlchemyEngine(Protocol):
    """An Engine or AsyncEngine of SQLAlchemy."""

    @property
    def dialect(self) -> Any: ...

    def connect(self) -> Any: ...

    def dispose(self, close: bool = True) -> Any: ...


class DatabaseAdapter(Protocol):
    """An adapter: Django(alias), SqlAlchemy(engine), or an object that implements Database."""

    def work(self) -> Any: ...

    def acquire(self, work: Any) -> Any: ...


class SyncConnection(Protocol):
    """A connection for claim(): of sqlite3, psycopg, SQLAlchemy (also a Session) or Django."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """A connection for aclaim(): of aiosqlite, psycopg or SQLAlchemy (also an AsyncSession)."""

    def commit(self) -> Awaitable[None]: ...


class Listener(Protocol):
    """Waits for notifications that messages were stored."""

    def wait(self, seconds: float) -> Steps[bool]:
        """Wait for a notification, at most this long. Returns True if messages may be stored."""
        ...

    def close(self) -> Steps[None]:
        """Close the connection that listens."""
        ...


class Database(Protocol):
    """Provides connections for transactions."""

    dialect: str
    is_async: bool
    reads_without_transaction: bool
    """True if statements that only read run without BEGIN, because BEGIN takes a write lock."""
    sleep: Callable[[float], Any]
    abandoned: list[Any]
    """Works that still have their connection, because an interrupt hit their clean-up."""

    def open(self) -> Steps[None]:
        """Prepare for use; called once, before the first acquire."""
        ...

    def close(self) -> Steps[None]:
        """Close what open() opened. A pool or engine of the user stays open."""
        ...

    def work(self) -> Work:
        """A new work, still without a connection."""
        ...

    def acquire(self, work: Any) -> Steps[None]:
        """Give the work a connection that no other work uses until it is released."""
        ...

    def release(self, work: Any) -> Steps[None]:
        """Take the connection back; close it if it is broken."""
        ...

    def recover(self) -> Steps[None]:
        """Discard idle connections, after one was lost: the others may be lost too."""
        ...

    def renew(self, work: Any) -> Steps[None]:
        """Close this connection and the idle ones.

        New connections may reach a server that accepts writes.
        """
        ...

    def listen(self, channel: str) -> Listener | None:
        """A listener for notifications; None if the driver has none."""
        ...


DatabaseTarget = str | PsycopgPool | SqlAlchemyEngine | DatabaseAdapter
"""The database of an inbox: a URL, a pool, an engine, or an adapter such as Django()."""
