"""Run code in a transaction: acquire a connection, commit or roll back, retry.

`run_transaction` commits and retries; `read` runs statements that only read, and retries;
`run_transaction_once` commits and does not retry. All of them use `with_connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from random import random
from traceback import clear_frames
from typing import TypeVar

from oncebox.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    MissingPrivilege,
    OnceboxError,
    TransactionEnded,
)
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.steps import Steps

T = TypeVar("T")

NOT_KNOWN_COMMITTED = "the commit is not confirmed, so do not ack"
"""Ends the text of DatabaseUnavailable."""

RETRY_DELAYS = (0.05, 0.2, 0.8, 3.2)
"""Seconds between two tries of a transaction; a random factor from 0.5 to 1.5 is applied."""

INTERNAL_TIMEOUT = 300.0
"""Seconds that a transaction without handlers may take: it may wait for one with handlers."""


class RetryTransaction(Exception):
    """A transaction failed because of the database; another try may succeed. See `__cause__`."""


class CannotCommit(Exception):
    """The handlers ran, but their work cannot be committed because of one of the messages."""


class Retries:
    """The tries of one transaction: the delay before the next one, and when there is none."""

    def __init__(
        self, database: Database, random: Callable[[], float], *, limit: float = inf
    ) -> None:
        self._database = database
        self._random = random
        self._limit = limit
        """Seconds. A try that took longer is not repeated: the next one would take as long."""
        self._delays = list(RETRY_DELAYS)
        self._started = time.monotonic()

    @property
    def is_too_slow(self) -> bool:
        """Whether the latest try took longer than the limit."""
        return time.monotonic() - self._started >= self._limit

    @property
    def are_used_up(self) -> bool:
        """Whether there is no further try."""
        return not self._delays or self.is_too_slow

    def wait(self) -> Steps[bool]:
        """Sleep before the next try. Returns False, at once, if there is none."""
        if self.are_used_up:
            return False
        yield partial(self._database.sleep, self._delays.pop(0) * (0.5 + self._random()))
        self._started = time.monotonic()
        return True


def run_transaction(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """Run `body` in a transaction and commit it; retry on errors of the database.

    Raises DatabaseUnavailable if every try fails. Not for handlers.
    """
    return (yield from _with_retries(database, partial(_commit, body)))


def read(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """Run statements that only read; retry on errors of the database.

    On SQLite they run without the write lock. Raises DatabaseUnavailable if every try fails.
    """
    # Elsewhere they are committed too: after a rollback psycopg prepares its statements again.
    whole = _read_without_transaction if database.reads_without_transaction else _commit
    return (yield from _with_retries(database, partial(whole, body)))


def run_transaction_once(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """Run `body` in a transaction and commit it, without retries. Raises RetryTransaction."""
    return (yield from with_connection(database, partial(_commit, body)))


def with_connection(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """Run `body` on a connection of its own; `body` begins and commits the transaction.

    On an error the transaction is rolled back. Raises RetryTransaction for database errors that may
    not occur again.
    """
    work = database.work()
    with _Tracked(database, work):
        try:
            yield from _acquire(database, work)
            result = yield from body(work)
            yield from database.release(work)
            return result
        except GeneratorExit:  # no runner performs our calls any more
            raise
        except BaseException as error:
            lost = yield from _clean_up(database, work, error)
            if lost or _is_temporary(error):
                raise RetryTransaction from _database_error(error)
            if _is_forbidden(error):
                raise MissingPrivilege(_description(error)) from error
            raise


def is_lock_timeout(error: DatabaseUnavailable) -> bool:
    """True if the database works, but another transaction held a lock for too long."""
    return isinstance(error.__cause__, Exception) and error_codes.is_timeout(error.__cause__)


def database_unavailable(error: BaseException | None) -> DatabaseUnavailable:
    """The exception to raise when the last try failed with this error."""
    return DatabaseUnavailable(f"{_description(error)}; {NOT_KNOWN_COMMITTED}")


def _with_retries(database: Database, whole: Callable[[Work], Steps[T]]) -> Steps[T]:
    retries = Retries(database, random)
    while True:
        try:
            return (yield from with_connection(database, whole))
        except RetryTransaction as retry:
            if not (yield from retries.wait()):
                raise database_unavailable(retry.__cause__) from retry.__cause__


def _commit(body: Callable[[Work], Steps[T]], work: Work) -> Steps[T]:
    yield from work.begin(INTERNAL_TIMEOUT)
    result = yield from body(work)
    yield from work.commit()
    return result


def _read_without_transaction(body: Callable[[Work], Steps[T]], work: Work) -> Steps[T]:
    """Run `body` without BEGIN, and roll back what the driver may have begun."""
    result = yield from body(work)
    yield from work.rollback()
    return result


def _acquire(database: Database, work: Work) -> Steps[None]:
    """Give the work a connection. Raises DatabaseUnavailable."""
    yield from _finish_abandoned(database)
    try:
        yield from database.acquire(work)
    except Exception as error:
        if isinstance(error, OnceboxError) or error_codes.is_interrupt(
            error, is_async=database.is_async
        ):
            raise
        raise DatabaseUnavailable(
            f"cannot connect to the database ({_description(error)}): {NOT_KNOWN_COMMITTED}"
        ) from error


def _roll_back_and_release(database: Database, work: Work) -> Steps[None]:
    """Roll back, and release the connection even if the rollback fails."""
    if work.connection is None:
        return
    try:
        yield from work.rollback()
    except GeneratorExit:
        raise
    except BaseException:  # most likely an interrupt, which no other error may replace
        with suppress(Exception):
            yield from database.release(work)
        raise
    yield from database.release(work)


class _Tracked:
    """Records a work that still has its connection when its transaction is over.

    That happens if an exception of a signal handler interrupts the clean-up. The next transaction
    finishes the clean-up.
    """

    def __init__(self, database: Database, work: Work) -> None:
        self._database = database
        self._work = work

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._work.connection is not None:
            self._database.abandoned.append(self._work)


def _finish_abandoned(database: Database) -> Steps[None]:
    while database.abandoned:
        try:
            work = database.abandoned.pop()
        except IndexError:  # another thread took it
            return
        with _Tracked(database, work):
            yield from _roll_back_and_release(database, work)


def _clean_up(database: Database, work: Work, error: BaseException) -> Steps[bool]:
    """Roll back and release after an error. Returns True if the connection was lost."""
    has_connection = work.connection is not None
    lost = has_connection and isinstance(error, Exception) and _is_lost(work, error)
    if has_connection and error_codes.is_read_only(error):
        yield from database.renew(work)
    if error_codes.is_interrupt(_database_error(error), is_async=database.is_async):
        # The driver may have been interrupted in the middle of a change to its own state.
        work.is_doubtful = True
        # An interrupted call of SQLAlchemy leaves a cursor in the traceback, and SQLite keeps the
        # transaction of a closed connection open while one of its cursors exists.
        clear_frames(error.__traceback__)
    yield from _roll_back_and_release(database, work)
    if lost:
        yield from database.recover()
    if error_codes.is_statement_pooling(error):
        raise ConfigurationError(
            "the pooler in front of the server is in statement mode, which does not allow "
            "transactions. Set pool_mode = transaction (or session) for this database in pgbouncer"
        ) from error
    return lost


def _database_error(error: BaseException) -> BaseException:
    """The error that the driver raised, or that interrupted it."""
    return error.__cause__ or error if isinstance(error, CannotCommit) else error


def _is_lost(work: Work, error: Exception) -> bool:
    """True if the connection broke, and was not closed on purpose."""
    known = (TransactionEnded, ConfigurationError, DatabaseUnavailable)
    return not isinstance(error, known) and work.is_lost(error)


def _is_temporary(error: BaseException) -> bool:
    """True if another try may succeed. Errors of handlers are recorded before they get here."""
    if isinstance(error, DatabaseUnavailable) or not isinstance(error, Exception):
        return False
    # If a handler makes its transaction read-only, that is an error of the handler. A transaction
    # that is read-only from its beginning is an outage of the server.
    return (
        error_codes.is_retryable(error)
        or error_codes.is_timeout(error)
        or error_codes.is_read_only(error)
    )


def _is_forbidden(error: BaseException) -> bool:
    """True if a statement of oncebox is forbidden, and not one of a handler."""
    return not isinstance(error, CannotCommit | OnceboxError) and error_codes.is_forbidden(error)


def _description(error: BaseException | None) -> str:
    """The text of an error, after its cause in plain words if there is one."""
    cause = error_codes.explain(error)
    return f"{cause + ': ' if cause else ''}{type(error).__name__}: {error}"
