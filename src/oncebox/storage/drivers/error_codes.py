"""What database errors mean for a transaction: one table of error codes per database.

To support another database, add a table to TABLES.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

Code: TypeAlias = str | int
Codes: TypeAlias = frozenset[Code]

NONE: Codes = frozenset()


class ErrorTable(msgspec.Struct, frozen=True, kw_only=True):
    """The error codes of one database, by their meaning."""

    codes_of: Callable[[BaseException], Iterator[Code]]
    """Returns the codes of an error: the exact one, and the group it belongs to."""
    conflict: Codes = NONE
    """Another transaction was in the way: run the transaction again at once."""
    out_of_resources: Codes = NONE
    """No disk space, no memory, I/O errors. No message caused them: retry, and count no attempt."""
    disk_full: Codes = NONE
    busy: Codes = NONE
    """Another connection holds the write lock of the database."""
    connection_lost: Codes = NONE
    timeout: Codes = NONE
    """A statement ran, or waited for a lock, longer than the settings of the server allow."""
    read_only: Codes = NONE
    aborted: Codes = NONE
    """An earlier error aborted the transaction."""
    missing_table: Codes = NONE
    forbidden: Codes = NONE
    """The role has no privilege for the statement."""
    not_a_database: Codes = NONE
    prepared_statement: Codes = NONE
    """A prepared statement exists already, or does not exist: a pooler switched the session."""
    guard_failed: Codes = NONE
    """Raised by oncebox: the transaction is not the one of the claim."""
    not_owner: Codes = NONE
    """Raised by oncebox: another worker owns the partition."""


Meaning = Literal[
    "conflict",
    "out_of_resources",
    "disk_full",
    "busy",
    "connection_lost",
    "timeout",
    "read_only",
    "aborted",
    "missing_table",
    "forbidden",
    "not_a_database",
    "prepared_statement",
    "guard_failed",
    "not_owner",
]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also where SQLAlchemy or Django wrapped it."""
    for link in _chain(error):
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def _sqlstates(error: BaseException) -> Iterator[Code]:
    """The SQLSTATE, and its first two characters: the class."""
    state = sqlstate(error)
    if state is not None:
        yield from (state, state[:2])


POSTGRES = ErrorTable(
    codes_of=_sqlstates,
    conflict=frozenset(
        {
            "40001",  # serialization failure
            "40P01",  # deadlock detected
            "26000",  # the driver used a prepared statement that the server does not have
        }
    ),
    out_of_resources=frozenset(
        {
            "53",  # class: insufficient resources
            "58",  # class: system error, such as a failing disk
        }
    ),
    disk_full=frozenset({"53100"}),
    connection_lost=frozenset(
        {
            "08",  # class: connection exception
            "57P01",  # admin shutdown, pg_terminate_backend
            "57P02",  # crash shutdown
            "57P03",  # cannot connect now
            "25P03",  # idle in transaction session timeout
            "25P04",  # transaction timeout
        }
    ),
    timeout=frozenset(
        {
            "55P03",  # lock not available within lock_timeout
            "57014",  # query canceled by statement_timeout
        }
    ),
    read_only=frozenset({"25006"}),  # write in a read-only transaction
    aborted=frozenset({"25P02"}),  # in failed transaction
    missing_table=frozenset(
        {
            "42P01",  # undefined table
            "42883",  # undefined function
            "3F000",  # undefined schema
        }
    ),
    forbidden=frozenset({"42501"}),  # insufficient privilege
    prepared_statement=frozenset(
        {
            "42P05",  # duplicate prepared statement
            "26000",  # prepared statement does not exist
        }
    ),
    guard_failed=frozenset({"OB001"}),
    not_owner=frozenset({"OB002"}),
)


def _sqlite_codes(error: BaseException) -> Iterator[Code]:
    """The extended code, and its low byte, the primary code."""
    for link in _chain(error):
        code = getattr(link, "sqlite_errorcode", None)
        if code is not None:
            yield from (code, code & 0xFF)


SQLITE = ErrorTable(
    codes_of=_sqlite_codes,
    out_of_resources=frozenset(
        {
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        }
    ),
    disk_full=frozenset(
        {
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR_SHMSIZE,  # the shared-memory file of the database cannot grow
        }
    ),
    busy=frozenset({sqlite3.SQLITE_BUSY}),
    not_a_database=frozenset({sqlite3.SQLITE_NOTADB}),
)

TABLES = (POSTGRES, SQLITE)

# Errors that have no code of their own are recognised by their text.
_READ_ONLY_TEXTS = (
    "session is read-only",  # libpq, if target_session_attrs asks for a primary
    "server is in hot standby mode",
    "cannot use serializable mode in a hot standby",
)
_STATEMENT_POOLING_TEXT = "in statement pooling mode"  # pgbouncer
_SQLITE_MISSING_TABLE_TEXT = "no such table"
_SQLITE_GUARD_TEXT = "no such savepoint: oncebox_probe"

_DRIVERS = ("psycopg", "psycopg_pool", "psycopg2", "sqlite3", "aiosqlite", "asyncpg")
_LIBRARIES = (*_DRIVERS, "sqlalchemy", "django", "oncebox")


def code(error: BaseException) -> str | None:
    """The code of an error: its SQLSTATE, or its SQLite name."""
    names = (getattr(link, "sqlite_errorname", None) for link in _chain(error))
    return sqlstate(error) or next(filter(None, names), None)


def explain(error: BaseException | None) -> str:
    """The cause of an error in plain words, if its own text does not name it; else ""."""
    if error is None:
        return ""
    if is_disk_full(error):
        return "the disk is full"
    if _means(error, "not_a_database"):
        return "this file is not a SQLite database: check the path in the URL"
    return "the server is read-only" if is_read_only(error) else ""


def is_interrupt(error: BaseException, *, is_async: bool) -> bool:
    """True if a signal handler or a cancellation raised the error, not a driver or oncebox.

    Drivers that use asyncio raise the errors of its sockets unchanged.
    """
    if is_async and isinstance(error, OSError):  # TimeoutError is an OSError
        return False
    return all(cls.__module__.split(".")[0] not in _LIBRARIES for cls in type(error).__mro__)


def is_retryable(error: BaseException) -> bool:
    """True if the whole transaction has to run again, whatever message it handled."""
    return _means(error, "conflict") or _means(error, "out_of_resources")


def is_conflict(error: BaseException) -> bool:
    """True if another transaction was in the way: running again at once may succeed."""
    return _means(error, "conflict")


def is_disk_full(error: BaseException) -> bool:
    """True if the disk of the database is full."""
    return _means(error, "disk_full")


def is_timeout(error: BaseException) -> bool:
    """True if a statement exceeded a time limit of the server."""
    return _means(error, "timeout")


def is_connection_lost(error: BaseException) -> bool:
    """True if the error means that the connection is lost."""
    return _means(error, "connection_lost")


def is_aborted(error: BaseException) -> bool:
    """True if an earlier error aborted the transaction."""
    return _means(error, "aborted")


def is_busy(error: BaseException) -> bool:
    """True if another connection holds SQLite's write lock.

    In claim(), another connection wrote after the caller's transaction began to read. In a handler,
    it concerns another database file, because the claim's transaction holds the lock of this one.
    """
    return _means(error, "busy")


def is_read_only(error: BaseException) -> bool:
    """True if a transaction was read-only, or libpq found no server that accepts writes.

    Unless a handler made it read-only, this is an outage: the server is a standby, or has
    default_transaction_read_only.
    """
    if type(error).__module__.startswith("oncebox."):  # its cause is what a handler did
        return False
    return _means(error, "read_only") or any(_has_text(error, text) for text in _READ_ONLY_TEXTS)


def is_prepared_statement_error(error: BaseException) -> bool:
    """True if a statement was prepared in another session of the server than the current one."""
    return _means(error, "prepared_statement")


def is_statement_pooling(error: BaseException) -> bool:
    """True if a pooler in statement mode refused a transaction."""
    return _has_text(error, _STATEMENT_POOLING_TEXT)


def is_guard_failure(error: BaseException) -> bool:
    """True if the guard found another transaction than the one of the claim."""
    return _means(error, "guard_failed") or _has_text(error, _SQLITE_GUARD_TEXT)


def is_not_owner(error: BaseException) -> bool:
    """True if another worker owns the partition."""
    return _means(error, "not_owner")


def is_missing_table(error: BaseException) -> bool:
    """True if a table, function or schema of oncebox is missing."""
    return _means(error, "missing_table") or any(
        isinstance(link, sqlite3.OperationalError) and _SQLITE_MISSING_TABLE_TEXT in str(link)
        for link in _chain(error)
    )


def is_forbidden(error: BaseException) -> bool:
    """True if the role of the connection has no privilege for the statement."""
    return _means(error, "forbidden")


def _means(error: BaseException, meaning: Meaning) -> bool:
    return any(
        code in getattr(table, meaning) for table in TABLES for code in table.codes_of(error)
    )


def _has_text(error: BaseException, text: str) -> bool:
    return any(text in str(link) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its `orig` (set by SQLAlchemy), and its cause (set by Django)."""
    yield error
    for link in (getattr(error, "orig", None), error.__cause__):
        if isinstance(link, BaseException) and link is not error:
            yield link
            deeper = getattr(link, "__cause__", None)
            if isinstance(deeper, BaseException):
                yield deeper
