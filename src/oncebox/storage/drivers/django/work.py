"""One transaction on Django's connection of the current thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import transaction

from oncebox.errors import (
    ConfigurationError,
    NotInTransaction,
    SwallowedError,
    TransactionEnded,
    TransactionLost,
)
from oncebox.storage.contract import Guard
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.parameters import check_driver_statement, for_handler, translate
from oncebox.storage.drivers.transaction_state import has_ended
from oncebox.storage.drivers.watchdog import Watched
from oncebox.storage.steps import Call, Steps

logger = logging.getLogger("oncebox")


class DjangoWork(Watched):
    """One transaction on Django's connection of this thread."""

    schema_remedy = (
        "add 'oncebox.contrib.django' to INSTALLED_APPS and run `python manage.py migrate`"
    )
    is_exposed = False
    guard: Guard | None = None
    is_doubtful = False

    def __init__(self, connection: Any = None) -> None:
        self.connection = connection
        self._block: Any = None
        self._savepoints: list[Any] = []
        self._checks = ExitStack()
        self._depth = 0
        """The number of transaction.atomic() blocks that were open before ours."""

    def attach(self, connection: Any) -> None:
        """Use this connection."""
        self._depth = len(connection.atomic_blocks)
        self.connection = connection

    @classmethod
    def borrowed(cls, connection: Any) -> DjangoWork:
        """The work of a claim() in the caller's transaction, on the caller's connection."""
        if not connection.in_atomic_block:
            raise NotInTransaction("claim() needs an open transaction: use transaction.atomic()")
        return cls(connection)

    # -- the transaction ------------------------------------------------------------------------

    def begin(self, within: float | None = None) -> Steps[None]:
        self.connection.ensure_connection()
        self.watch(self.connection.connection, within)
        # Inside the caller's transaction our commit would only release a savepoint.
        if self.connection.in_atomic_block and not _in_testcase(self.connection):
            raise ConfigurationError(
                "process() commits its own transaction and cannot run inside transaction.atomic(). "
                "Call it outside, disable ATOMIC_REQUESTS for this view, or use inbox.claim() in "
                "your transaction"
            )
        if not self.connection.in_atomic_block and not self.connection.get_autocommit():
            raise ConfigurationError(
                "AUTOCOMMIT is False in DATABASES, so transaction.atomic() does not commit: remove "
                "the setting"
            )
        block = transaction.atomic(using=self.connection.alias)
        yield block.__enter__
        self._block = block

    def enter_savepoint(self) -> Steps[None]:
        # transaction.atomic() and not a raw savepoint: it also drops the on_commit callbacks of
        # work that is undone.
        savepoint = transaction.atomic(using=self.connection.alias)
        yield savepoint.__enter__
        if not self._savepoints:
            self._checks.enter_context(self.connection.execute_wrapper(_check_statement))
        self._savepoints.append(savepoint)

    def release_savepoint(self, *, wait: bool = True) -> Steps[None]:
        self._check()
        if len(self._savepoints) == 1:
            self._checks.close()
        savepoint, self._savepoints[-1] = self._savepoints[-1], None
        # If this fails, Django rolls back to the savepoint before it raises.
        yield partial(savepoint.__exit__, None, None, None)
        self._savepoints.pop()

    def rollback_deferred(self, error: BaseException) -> Steps[bool]:
        """Nothing is deferred: without a pipeline, errors are raised at once."""
        yield from ()
        return False

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        if len(self._savepoints) == 1:
            self._checks.close()
        savepoint = self._savepoints.pop()
        if savepoint is not None:
            yield partial(savepoint.__exit__, type(error), error, error.__traceback__)
        elif error_codes.is_interrupt(error, is_async=False):
            # An interrupt hit its release, which may have succeeded: the work would stay.
            raise TransactionLost from error
        if self.connection.needs_rollback:
            raise TransactionLost from error
        return True

    def after_handler(self) -> Steps[None]:
        self._check()
        yield from ()

    def _check(self) -> None:
        """Raise if the work will be rolled back: Django would do that without an error."""
        if not self.connection.in_atomic_block:
            raise TransactionLost
        if self.connection.closed_in_transaction:
            raise TransactionEnded("the handler closed the connection of its transaction")
        if has_ended(self.connection.connection):
            raise TransactionEnded
        if self.connection.needs_rollback:
            raise SwallowedError(
                "the handler caught a database error inside transaction.atomic(), or called "
                "set_rollback(True), so Django would roll back its work without an error: put the "
                "statement in its own transaction.atomic() block"
            )

    def commit(self) -> Steps[None]:
        if self.guard is not None:
            yield from self.execute(*self.guard)
        self._check()
        callbacks, self.connection.run_on_commit = self.connection.run_on_commit, []
        block, self._block = self._block, None
        yield partial(block.__exit__, None, None, None)
        yield partial(_run_callbacks, callbacks)

    def rollback(self) -> Steps[None]:
        self._checks.close()
        error = TransactionLost()
        blocks = [block for block in (*self._savepoints[::-1], self._block) if block is not None]
        self._savepoints, self._block = [], None
        try:
            for block in blocks:
                yield partial(block.__exit__, TransactionLost, error, None)
        except Exception:
            yield self.connection.close

    @property
    def is_unfinished(self) -> bool:
        """True if one of our blocks is still open, because an interrupt hit its end."""
        return len(self.connection.atomic_blocks) > self._depth

    def reset(self) -> None:
        """Close the connection, clear Django's list of blocks, and connect again."""
        connection = self.connection
        connection.close()
        connection.in_atomic_block = False
        connection.connection = None
        connection.connect()

    def is_lost(self, error: BaseException) -> bool:
        raw = self.connection.connection
        closed = raw is None or bool(getattr(raw, "closed", False))
        return closed or error_codes.is_connection_lost(error)

    # -- our own statements ---------------------------------------------------------------------

    def fetch(self, sql: str, params: Mapping[str, Any]) -> Steps[list[Sequence[Any]]]:
        statement = translate(sql, "format")
        return (yield partial(self._fetch, statement.sql, statement.pick(params)))  # type: ignore[no-any-return]

    def execute(self, sql: str, params: Mapping[str, Any]) -> Steps[None]:
        statement = translate(sql, "format")
        yield partial(self._execute, statement.sql, statement.pick(params))

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Steps[None]:
        statement = translate(sql, "format")
        yield partial(self._execute_many, statement.sql, [statement.pick(row) for row in rows])

    def _fetch(self, sql: str, args: tuple[Any, ...]) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall()  # type: ignore[no-any-return]

    def _execute(self, sql: str, args: tuple[Any, ...]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)

    def _execute_many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(sql, rows)

    # -- handlers' statements -------------------------------------------------------------------

    def submit(self, sql: str, params: Mapping[str, Any]) -> Call:
        statement = for_handler(sql, "format")
        return partial(self._submit, statement.sql, statement.bind(params))

    def _submit(self, sql: str, args: tuple[Any, ...]) -> tuple[list[Any], int]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            rows = cursor.fetchall() if cursor.description else []
            return rows, cursor.rowcount

    def submit_many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> Call:
        statement = for_handler(sql, "format")
        return partial(self._execute_many, statement.sql, [statement.bind(row) for row in rows])

    def hold(self, result: object) -> None:
        """Nothing to do: results are read at once."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        yield from ()
        return handle[0]  # type: ignore[no-any-return]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle[1]  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        raise ConfigurationError("tx.session needs SQLAlchemy: with Django, use your models")


def _check_statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if not isinstance(sql, str):  # psycopg.sql.Composed
        sql = sql.as_string(context["cursor"].cursor)
    check_driver_statement(sql)
    return execute(sql, params, many, context)


def _in_testcase(connection: Any) -> bool:
    """True if all outer blocks belong to a django.test.TestCase."""
    return all(block._from_testcase for block in connection.atomic_blocks)


def _run_callbacks(callbacks: list[Any]) -> None:
    """Run the on_commit callbacks of handlers. Their errors are logged: the work is committed."""
    for _, function, _ in callbacks:
        try:
            function()
        except Exception:
            logger.exception("on_commit callback failed; the messages of its batch are committed")
