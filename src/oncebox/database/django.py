"""Django: the connection of an alias, so that ORM handlers just work. Sync."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from oncebox.database import faults
from oncebox.database.parameters import check_driver_statement, for_handler, translate
from oncebox.errors import (
    ConfigurationError,
    NotInTransaction,
    SwallowedError,
    TransactionLost,
)
from oncebox.store.contract import Call, Steps

DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}

logger = logging.getLogger("oncebox")


class DjangoDatabase:
    """A database alias of Django's settings."""

    is_async = False
    sleep = staticmethod(time.sleep)

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias
        try:
            vendor = connections[alias].vendor
        except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
            raise ConfigurationError(f"Django database {alias!r}: {error}") from error
        if vendor not in DIALECTS:
            raise ConfigurationError(f"oncebox works on PostgreSQL and SQLite, not on {vendor}")
        self.dialect = DIALECTS[vendor]

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        """Django's connections are Django's to close."""
        yield from ()

    def acquire(self) -> Steps[DjangoWork]:
        connection = connections[self.alias]
        if not connection.in_atomic_block:  # as it is at the beginning and the end of a request
            yield connection.close_if_unusable_or_obsolete
        return DjangoWork(connection)

    def release(self, work: DjangoWork) -> Steps[None]:
        if not work.connection.in_atomic_block:
            yield work.connection.close_if_unusable_or_obsolete

    def recover(self) -> Steps[None]:
        yield from ()

    def listen(self, channel: str) -> None:
        """This driver hears nothing; whoever waits looks by himself."""


class DjangoWork:
    """One transaction on Django's connection of this thread."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._block: Any = None
        self._savepoints: list[Any] = []
        self._watch = ExitStack()

    @classmethod
    def borrowed(cls, connection: Any) -> DjangoWork:
        """The caller's own connection, for a claim in the caller's transaction."""
        if not connection.in_atomic_block:
            raise NotInTransaction("claim() needs an open transaction: use transaction.atomic()")
        return cls(connection)

    # -- the transaction ------------------------------------------------------------------------

    def begin(self) -> Steps[None]:
        self.connection.ensure_connection()
        # Inside of the caller's own transaction a commit would not be one.
        if self.connection.in_atomic_block and not _in_testcase(self.connection):
            raise ConfigurationError("process() inside of transaction.atomic() could not commit")
        if not self.connection.in_atomic_block and not self.connection.get_autocommit():
            raise ConfigurationError(
                "with Django's AUTOCOMMIT switched off, transaction.atomic() does not commit"
            )
        block = transaction.atomic(using=self.connection.alias)
        yield block.__enter__
        self._block = block

    def enter_savepoint(self) -> Steps[None]:
        # Django's own atomic and no raw savepoint: it also drops the on_commit callbacks of work
        # that is undone.
        savepoint = transaction.atomic(using=self.connection.alias)
        yield savepoint.__enter__
        if not self._savepoints:
            self._watch.enter_context(self.connection.execute_wrapper(_check_statement))
        self._savepoints.append(savepoint)

    def release_savepoint(self) -> Steps[None]:
        self._check()
        if len(self._savepoints) == 1:
            self._watch.close()
        savepoint, self._savepoints[-1] = self._savepoints[-1], None
        # Where this fails, Django rolls back to the savepoint before it raises.
        yield partial(savepoint.__exit__, None, None, None)
        self._savepoints.pop()

    def rollback_to_savepoint(self, error: BaseException) -> Steps[bool]:
        if len(self._savepoints) == 1:
            self._watch.close()
        savepoint = self._savepoints.pop()
        if savepoint is not None:
            yield partial(savepoint.__exit__, type(error), error, error.__traceback__)
        if self.connection.needs_rollback:
            raise TransactionLost from error
        return True

    def after_handler(self) -> Steps[None]:
        self._check()
        yield from ()

    def _check(self) -> None:
        """Raise if the work so far will be rolled back, which Django would do silently."""
        if not self.connection.in_atomic_block:
            raise TransactionLost
        if self.connection.needs_rollback:
            raise SwallowedError(
                "the handler caught a database error inside of transaction.atomic(), or called "
                "set_rollback(): its work would be rolled back silently"
            )

    def commit(self, guard: str, params: Mapping[str, Any]) -> Steps[None]:
        yield from self.execute(guard, params)
        self._check()
        callbacks, self.connection.run_on_commit = self.connection.run_on_commit, []
        block, self._block = self._block, None
        yield partial(block.__exit__, None, None, None)
        yield partial(_run, callbacks)

    def rollback(self) -> Steps[None]:
        self._watch.close()
        error = TransactionLost()
        blocks = [block for block in (*self._savepoints[::-1], self._block) if block is not None]
        self._savepoints, self._block = [], None
        try:
            for block in blocks:
                yield partial(block.__exit__, TransactionLost, error, None)
        except Exception:
            yield self.connection.close

    def is_lost(self, error: BaseException) -> bool:
        raw = self.connection.connection
        closed = raw is None or bool(getattr(raw, "closed", False))
        return closed or faults.is_lost(error)

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
        """Results are read at once here."""

    def rows(self, handle: Any) -> Steps[list[Any]]:
        yield from ()
        return handle[0]  # type: ignore[no-any-return]

    def rowcount(self, handle: Any) -> Steps[int]:
        yield from ()
        return handle[1]  # type: ignore[no-any-return]

    @property
    def session(self) -> Any:
        raise ConfigurationError("tx.session needs SQLAlchemy; with Django use the models")


def _check_statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if isinstance(sql, str):
        check_driver_statement(sql)
    return execute(sql, params, many, context)


def _in_testcase(connection: Any) -> bool:
    """Whether the outer transaction is that of a django.test.TestCase, which is rolled back."""
    return all(block._from_testcase for block in connection.atomic_blocks)


def _run(callbacks: list[Any]) -> None:
    """Run what handlers left for after the commit. It cannot be undone by an error here."""
    for _, function, _ in callbacks:
        try:
            function()
        except Exception:
            logger.exception("an on_commit callback failed; its messages are done all the same")
