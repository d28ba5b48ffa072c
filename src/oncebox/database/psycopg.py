"""psycopg 3, sync and async: a pool, pipeline mode, and one cursor that is used again and again."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from oncebox.database import faults, queueing
from oncebox.database.dumpers import teach_arrays
from oncebox.database.listening import Listener
from oncebox.database.parameters import check_driver_statement, for_handler, translate
from oncebox.database.steps import entering, leaving
from oncebox.errors import (
    ConfigurationError,
    MissingExtra,
    NotInTransaction,
    SwallowedError,
    TransactionLost,
)
from oncebox.store.contract import Call, Steps

try:
    import psycopg_pool
except ImportError as error:  # pragma: no cover - psycopg without its pool
    raise MissingExtra("psycopg_pool", "postgres") from error


DRAINS = 1000
"""How often a pipeline may answer with an error until it comes to rest."""

CURSORS = 64
"""How many statement texts of handlers have a cursor of their own at a time."""


class PsycopgDatabase:
    """A pool of psycopg connections: the user's, or our own for a URL."""

    dialect = "postgres"

    def __init__(self, pool: Any, *, pipeline: bool = True, owned: bool = False) -> None:
        self.pool = pool
        self.is_async = isinstance(pool, psycopg_pool.AsyncConnectionPool)
        self.sleep = asyncio.sleep if self.is_async else time.sleep
        self._pipeline = pipeline and psycopg.Pipeline.is_supported()
        self._owned = owned

    @classmethod
    def from_url(cls, url: str, *, is_async: bool, pipeline: bool = True) -> PsycopgDatabase:
        """A pool of our own."""
        kind = psycopg_pool.AsyncConnectionPool if is_async else psycopg_pool.ConnectionPool
        pool = kind(url, min_size=1, max_size=16, timeout=10, open=False, name="oncebox")
        return cls(pool, pipeline=pipeline, owned=True)

    @staticmethod
    def check_url(url: str) -> None:
        """Raise ConfigurationError for a URL that libpq cannot read."""
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigurationError(f"the database URL cannot be read: {error}") from error

    def open(self) -> Steps[None]:
        if self._owned:
            yield self.pool.open

    def close(self) -> Steps[None]:
        if self._owned:
            yield self.pool.close

    def acquire(self) -> Steps[PsycopgWork]:
        try:
            connection = yield self.pool.getconn
        except psycopg_pool.PoolTimeout:
            yield from self._look_why()
            raise
        return PsycopgWork(connection, pipeline=self._pipeline)

    def _look_why(self) -> Steps[None]:
        """Connect once by hand: its error says what a pool keeps to itself."""
        if self._owned:
            kind: Any = psycopg.AsyncConnection if self.is_async else psycopg.Connection
            connection = yield partial(kind.connect, self.pool.conninfo, connect_timeout=5)
            yield connection.close

    def release(self, work: PsycopgWork) -> Steps[None]:
        yield partial(self.pool.putconn, work.connection)

    def recover(self) -> Steps[None]:
        yield self.pool.check

    def listen(self, channel: str) -> Listener | None:
        if callable(self.pool.conninfo) or callable(self.pool.kwargs):
            return None  # made anew for every connection of the pool: that is its own affair
        # A connection that only listens would not notice for a quarter of an hour that it is dead.
        options = {**(self.pool.kwargs or {}), "autocommit": True, "tcp_user_timeout": 5000}
        connect = partial(self.pool.connection_class.connect, self.pool.conninfo, **options)
        return Listener(connect, channel, self.sleep)


class PsycopgWork:
    """One transaction on one psycopg connection."""

    def __init__(self, connection: Any, *, pipeline: bool = False) -> None:
        self.connection = connection
        teach_arrays(connection)
        is_async = isinstance(connection, psycopg.AsyncConnection)
        self._transaction: Any = psycopg.AsyncTransaction if is_async else psycopg.Transaction
        self._pipelined = pipeline
        self._pipeline: Any = None
        self._pipeline_block: Any = None
        self._block: Any = None
        self._savepoints: list[Any] = []
        # Not connection.cursor(): the user's row factory or cursor class would change the answers.
        self._new_cursor: Any = partial(
            psycopg.AsyncCursor if is_async else psycopg.Cursor, connection, row_factory=tuple_row
        )
        self._binary = self._new_cursor()
        self._binary.format = Format.BINARY
        self._factories = (connection.cursor_factory, connection.server_cursor_factory)
        self._submitted = 0
        self._queue = queueing.aqueue if is_async else queueing.queue
        self._held: dict[str, weakref.ref[object]] = {}
        self._cursors: dict[str, Any] = {}
        self._latest = ""

    @classmethod
    def borrowed(cls, connection: Any) -> PsycopgWork:
        """The caller's own connection, for a claim in the caller's transaction."""
        status = connection.info.transaction_status
        # In a pipeline the status lags behind: with autocommit, only a transaction that psycopg
        # knows of is trusted.
        if connection.autocommit and status != TransactionStatus.INTRANS:
            raise NotInTransaction
        return cls(connection)

    # -- the transaction ------------------------------------------------------------------------

    def begin(self) -> Steps[None]:
        # A transaction block, because inside of one psycopg forbids commit() and rollback(). Made
        # directly: connection.transaction() waits for the server twice more in a pipeline.
        block = self._transaction(self.connection)
        if self._pipelined and queueing.SUPPORTED:
            yield from self._enter_pipeline()
            yield entering(block)
            # Else psycopg would begin once more: until the first sync, which tells it that it is in
            # a transaction, it has to see that something is under way.
            queueing.hand_over(self._pipeline)
        else:
            yield entering(block)
            if self._pipelined:
                yield from self._enter_pipeline()
        self._block = block
        self.connection.cursor_factory = _guarded(self._factories[0])
        if self._pipelined:
            self.connection.server_cursor_factory = _refuse

    def _enter_pipeline(self) -> Steps[None]:
        self._pipeline_block = self.connection.pipeline()
        self._pipeline = yield entering(self._pipeline_block)

    def enter_savepoint(self) -> Steps[None]:
        savepoint = self._transaction(self.connection, f"oncebox_work_{len(self._savepoints)}")
        yield entering(savepoint)
        self._savepoints.append(savepoint)

    def release_savepoint(self) -> Steps[None]:
        error = yield from self._drain()
        if error is not None:
            raise error
        self._check_status()
        yield leaving(self._savepoints[-1])
        self._savepoints.pop()

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        # Nothing may be queued before the rollback went through: until then psycopg believes in
        # statements that the failed pipeline should have prepared.
        late = yield from self._drain()
        yield leaving(self._savepoints.pop(), error)
        if (yield from self._drain()) is not None:
            raise TransactionLost from error
        self._check_status()
        return late is None and (self._pipeline is None or not isinstance(error, psycopg.Error))

    def after_handler(self) -> Steps[None]:
        # Nothing can be known in a pipeline without waiting.
        yield from ()

    def commit(self, guard: str, params: Mapping[str, Any]) -> Steps[None]:
        yield from self.execute(guard, params)
        block, self._block = self._block, None
        yield leaving(block)
        if self._pipeline is not None:
            yield self._pipeline.sync
            yield from self._leave_pipeline()
        self._restore()

    def rollback(self) -> Steps[None]:
        self._restore()
        try:
            yield from self._drain()
            if self._pipeline is not None:
                yield from self._leave_pipeline()
            if self._savepoints:  # psycopg leaves them only in order; the pool ends the transaction
                yield self.connection.close
            elif self._block is not None:
                block, self._block = self._block, None
                yield leaving(block, psycopg.Rollback())
            elif self.connection.info.transaction_status != TransactionStatus.IDLE:
                yield self.connection.rollback
        except BaseException as error:
            yield self.connection.close
            if not isinstance(error, Exception):
                raise

    def _leave_pipeline(self) -> Steps[None]:
        pipeline, self._pipeline = self._pipeline, None
        queueing.rest(pipeline)
        yield leaving(self._pipeline_block)

    def _restore(self) -> None:
        self.connection.cursor_factory, self.connection.server_cursor_factory = self._factories

    def is_lost(self, error: BaseException) -> bool:
        return bool(self.connection.closed) or faults.is_lost(error)

    def _check_status(self) -> None:
        status = self.connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise SwallowedError
        if status != TransactionStatus.INTRANS:
            raise TransactionLost

    def _drain(self) -> Steps[psycopg.Error | None]:
        """Wait for everything under way; return the first error, unless the connection is gone."""
        first: psycopg.Error | None = None
        for _ in range(DRAINS if self._pipeline is not None else 0):
            try:
                yield self._pipeline.sync
                return first
            except psycopg.errors.PipelineAborted as error:
                first = first or error
            except psycopg.Error as error:
                if self.connection.closed:
                    raise
                # What follows an error in a pipeline is only its echo.
                if first is None or isinstance(first, psycopg.errors.PipelineAborted):
                    first = error
        if self._pipeline is not None:
            raise TransactionLost("the pipeline does not come to rest") from first
        return first

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "binary", packed=True)
        yield partial(self._binary.execute, statement.sql, statement.pick(params) or None)
        yield from self._sync()
        return (yield self._binary.fetchall)  # type: ignore[no-any-return]

    def _sync(self) -> Steps[None]:
        """Wait for everything under way; from then on psycopg knows of the transaction, and each
        cursor has the result of its latest statement."""
        if self._pipeline is not None:
            yield self._pipeline.sync

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, "binary", packed=True)
        args = (statement.sql, statement.pick(params) or None)
        if self._pipeline is None:
            yield partial(self._binary.execute, *args)
        else:
            yield partial(self._queue, self._binary, *args)

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "binary", packed=True)
        yield partial(self._binary.executemany, statement.sql, [statement.pick(r) for r in rows])
        yield from self._sync()

    # -- handlers' statements -------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        statement = for_handler(sql, "format", packed=True)
        cursor = self._cursor_for(statement.sql)
        args = (statement.sql, statement.bind(params))
        self._submitted += 1
        if self._pipeline is None or self._submitted % queueing.EVERY == 0:
            return partial(cursor.execute, *args)
        return partial(self._queue, cursor, *args)

    def _cursor_for(self, sql: str) -> Any:
        """The cursor of a statement's text: used again, it remembers how to send the values."""
        cursor = self._cursors.get(sql)
        held = self._held.get(sql)
        if cursor is None or (held is not None and held() is not None):
            if len(self._cursors) >= CURSORS:
                self._cursors.clear()
            cursor = self._cursors[sql] = self._new_cursor()
        self._latest = sql
        return cursor

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        statement = for_handler(sql, "format", packed=True)
        cursor = self._new_cursor()
        return partial(cursor.executemany, statement.sql, [statement.bind(row) for row in rows])

    def hold(self, result: object) -> None:
        self._held[self._latest] = weakref.ref(result)

    def rows(self, handle: Any) -> Steps[list[Any]]:
        yield from self._sync()
        return (yield handle.fetchall)  # type: ignore[no-any-return]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from self._sync()
        return handle.rowcount  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        raise ConfigurationError(
            "tx.session needs SQLAlchemy: give the inbox an Engine or a postgresql+psycopg:// URL"
        )


@cache
def _guarded(factory: type) -> type:
    """A cursor class that refuses to end the transaction: what tx.connection makes."""

    class Guarded(factory):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            _check(query)
            return super().execute(query, *args, **kwargs)

    return Guarded


def _refuse(*_: Any, **__: Any) -> Any:
    raise psycopg.NotSupportedError(
        "server-side cursors get the answers of other statements in a pipeline: give the inbox "
        "pipeline=False"
    )


def _check(query: Any) -> None:
    if isinstance(query, str | bytes):
        check_driver_statement(query if isinstance(query, str) else query.decode())
