"""One transaction on a psycopg connection, with pipeline mode and reused cursors."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from oncebox.errors import (
    ConfigurationError,
    SwallowedError,
    TransactionEnded,
    TransactionLost,
)
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.attached_work import AttachedWork
from oncebox.storage.drivers.parameters import for_handler, translate
from oncebox.storage.drivers.psycopg import queueing
from oncebox.storage.drivers.psycopg.dumpers import register_arrays
from oncebox.storage.drivers.psycopg.guarded_cursor import guarded, refuse_server_cursor
from oncebox.storage.drivers.psycopg.savepoint import AsyncSavepoint, Savepoint
from oncebox.storage.drivers.savepoints import savepoint_name
from oncebox.storage.steps import Call, Steps, entering, leaving

MAX_SYNCS = 1000
"""Syncs of a pipeline that may fail in a row before its transaction counts as lost."""

MAX_CURSORS = 64
"""Cursors that are kept for reuse, one per statement text of a handler."""


class PsycopgWork(AttachedWork):
    """One transaction on one psycopg connection."""

    def __init__(self, *, pipeline: bool = False) -> None:
        self._pipelined = pipeline
        self._pipeline: Any = None
        self._pipeline_block: Any = None
        self._block: Any = None
        self._savepoints: list[Any] = []
        self._factories: tuple[Any, Any] | None = None
        self._submitted = 0
        self._held: dict[str, weakref.ref[object]] = {}
        self._cursors: dict[str, Any] = {}
        self._latest = ""
        self._deferred: str | None = None
        """The savepoint that was released without waiting for the server."""

    def _prepare(self) -> None:
        connection = self.connection
        self._factories = (connection.cursor_factory, connection.server_cursor_factory)
        register_arrays(connection)
        is_async = isinstance(connection, psycopg.AsyncConnection)
        self._transaction: Any = psycopg.AsyncTransaction if is_async else psycopg.Transaction
        # Not connection.cursor(): the user's row factory or cursor class would change the rows.
        self._new_cursor: Any = partial(
            psycopg.AsyncCursor if is_async else psycopg.Cursor, connection, row_factory=tuple_row
        )
        self._binary = self._new_cursor()
        self._binary.format = Format.BINARY
        self._queue = queueing.aqueue if is_async else queueing.queue
        self._fetch = _afetch if is_async else _fetch
        self._savepoint = AsyncSavepoint if is_async else Savepoint

    # -- the transaction ------------------------------------------------------------------------

    def begin(self, within: float | None = None) -> Steps[None]:
        self.watch(self.connection, within)
        # A transaction block, because inside one psycopg forbids commit() and rollback(). Not made
        # by connection.transaction(), which waits for the server twice more in a pipeline.
        block = self._transaction(self.connection)
        if self._pipelined and queueing.SUPPORTED:
            yield from self._enter_pipeline()
            yield entering(block)
            # Otherwise psycopg would send BEGIN again. Only the first sync tells psycopg that it is
            # in a transaction; until then it must see that a command is under way.
            queueing.hand_over(self._pipeline)
        else:
            yield entering(block)
            if self._pipelined:
                yield from self._enter_pipeline()
        self._block = block
        self.connection.cursor_factory = guarded(self.connection.cursor_factory)
        if self._pipelined:
            self.connection.server_cursor_factory = refuse_server_cursor

    def _enter_pipeline(self) -> Steps[None]:
        self._pipeline_block = self.connection.pipeline()
        self._pipeline = yield entering(self._pipeline_block)

    def enter_savepoint(self) -> Steps[None]:
        savepoint = self._savepoint(self.connection, savepoint_name(len(self._savepoints)))
        yield entering(savepoint)
        self._savepoints.append(savepoint)

    def release_savepoint(self, *, wait: bool = True) -> Steps[None]:
        # A handler that had the connection may have left anything behind in the pipeline.
        if wait or self.is_exposed or self._pipeline is None:
            error = yield from self._finish_pipeline()
            if error is not None:
                raise error
            self._check_status()
        else:
            self._deferred = savepoint_name(len(self._savepoints) - 1)
        yield leaving(self._savepoints[-1])
        self._savepoints.pop()

    def rollback_deferred(self, error: BaseException) -> Steps[bool]:
        # After an error the server skips all statements up to the sync. So if a statement of the
        # handler failed, RELEASE and COMMIT did not run, and the savepoint still exists.
        name, self._deferred = self._deferred, None
        is_ours = isinstance(error, psycopg.Error)  # otherwise a signal interrupted psycopg
        if name is None or self.connection.closed or not is_ours:
            return False
        yield from self._finish_pipeline()
        if self.connection.info.transaction_status != TransactionStatus.INERROR:
            return False
        yield leaving(self._savepoint(self.connection, name).adopt(), error)
        if (yield from self._finish_pipeline()) is not None:
            return False
        return bool(self.connection.info.transaction_status == TransactionStatus.INTRANS)

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        # Queue nothing before the rollback is done: until then psycopg assumes that the failed
        # pipeline prepared its statements.
        late = yield from self._finish_pipeline()
        yield leaving(self._savepoints.pop(), error)
        if (yield from self._finish_pipeline()) is not None:
            raise TransactionLost from error
        self._check_status()
        return late is None and (self._pipeline is None or not isinstance(error, psycopg.Error))

    def after_handler(self) -> Steps[None]:
        if self.connection.closed and not self.connection.broken:
            raise TransactionEnded("the handler closed the connection of its transaction")
        if self._pipeline is None:
            self._check_status()
        # A handler that had the connection may have ended the transaction in a way that no check
        # saw. In a pipeline that becomes visible late. The guard fails then, and after an error the
        # server skips the statements of later handlers, so they never run outside the transaction.
        if self.is_exposed and self.guard is not None:
            yield from self.execute(*self.guard)

    def commit(self) -> Steps[None]:
        if self.guard is not None:
            yield from self.execute(*self.guard)
        block, self._block = self._block, None
        if block is not None:
            yield leaving(block)
            if self.connection.closed:  # psycopg skips the COMMIT then, and raises nothing
                raise psycopg.OperationalError("the connection was closed before the COMMIT")
        else:  # a COMMIT was skipped before, see rollback_deferred()
            yield partial(self._queue, self._binary, "COMMIT", None)
        if self._pipeline is not None:
            yield self._pipeline.sync
            yield from self._leave_pipeline()
        self._restore()

    def rollback(self) -> Steps[None]:
        self._restore()
        if self.is_doubtful:
            yield from self._close()
            return
        try:
            yield from self._finish_pipeline()
            if self._pipeline is not None:
                yield from self._leave_pipeline()
            # psycopg can leave savepoints only in order, and cannot leave an interrupted pipeline.
            if self._savepoints or self._pipeline_block is not None:
                yield from self._close()
            elif self._block is not None:
                block, self._block = self._block, None
                yield leaving(block, psycopg.Rollback())
            elif self.connection.info.transaction_status != TransactionStatus.IDLE:
                yield self.connection.rollback
        except BaseException as error:
            yield from self._close()
            if not isinstance(error, Exception):
                raise

    def _close(self) -> Steps[None]:
        yield self.connection.close
        # Otherwise the garbage collector would leave the pipeline, perhaps while the connection is
        # locked.
        block, self._pipeline_block = self._pipeline_block, None
        if block is not None:
            with suppress(Exception):
                yield leaving(block)

    def _leave_pipeline(self) -> Steps[None]:
        pipeline, self._pipeline = self._pipeline, None
        queueing.skip_last_sync(pipeline)
        yield leaving(self._pipeline_block)
        self._pipeline_block = None

    def _restore(self) -> None:
        if self._factories is not None:
            self.connection.cursor_factory, self.connection.server_cursor_factory = self._factories

    def is_lost(self, error: BaseException) -> bool:
        return bool(self.connection.closed) or error_codes.is_connection_lost(error)

    def _check_status(self) -> None:
        status = self.connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise SwallowedError
        if status == TransactionStatus.IDLE:
            raise TransactionEnded
        if status != TransactionStatus.INTRANS:
            raise TransactionLost

    def _finish_pipeline(self) -> Steps[psycopg.Error | None]:
        """Wait for all pipelined statements, and return the first error.

        Raises if the connection is lost.
        """
        first: psycopg.Error | None = None
        for _ in range(MAX_SYNCS if self._pipeline is not None else 0):
            try:
                yield self._pipeline.sync
                return first
            except psycopg.errors.PipelineAborted as error:
                first = first or error
            except psycopg.Error as error:
                if self.connection.closed:
                    raise
                # Later errors in an aborted pipeline only repeat the first one.
                if first is None or isinstance(first, psycopg.errors.PipelineAborted):
                    first = error
        if self._pipeline is not None:
            raise TransactionLost(
                f"the pipeline failed {MAX_SYNCS} times in a row: try Inbox(..., pipeline=False)"
            ) from first
        return first

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "binary", packed=True)
        args = (statement.sql, statement.pick(params) or None)
        return (yield partial(self._fetch, self._binary, self._pipeline, *args))  # type: ignore[no-any-return]

    def _sync(self) -> Steps[None]:
        """Wait for all pipelined statements: then each cursor has its latest result."""
        if self._pipeline is not None:
            yield self._pipeline.sync

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, "binary", packed=True)
        args = (statement.sql, statement.pick(params) or None)
        if self._pipeline is None:
            yield partial(self._binary.execute, *args)
        elif queueing.SUPPORTED:  # it does not wait
            queueing.queue(self._binary, *args)
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
        """The cursor for a statement text. A reused cursor knows how to adapt the values."""
        cursor = self._cursors.get(sql)
        held = self._held.get(sql)
        if cursor is None or (held is not None and held() is not None):
            if len(self._cursors) >= MAX_CURSORS:
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
            "tx.session needs SQLAlchemy: create the inbox with an Engine or a "
            "postgresql+psycopg:// URL"
        )


def _fetch(cursor: Any, pipeline: Any, sql: str, args: tuple[Any, ...] | None) -> list[Any]:
    cursor.execute(sql, args)
    if pipeline is not None:
        pipeline.sync()
    return cursor.fetchall()  # type: ignore[no-any-return]


async def _afetch(cursor: Any, pipeline: Any, sql: str, args: tuple[Any, ...] | None) -> list[Any]:
    await cursor.execute(sql, args)
    if pipeline is not None:
        await pipeline.sync()
    return await cursor.fetchall()  # type: ignore[no-any-return]
