"""Faults: which database errors mean that the whole unit of work has to be run again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

RERUN = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock detected
        "26000",  # a prepared statement that the driver had forgotten about: ours, not a message's
    }
)
STRAINED = ("53", "58")
"""No room, no memory, failing disks: no message's fault, and dead letters would not help."""
LOST = frozenset(
    {
        "57P01",  # admin shutdown, pg_terminate_backend
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now
        "25P03",  # idle in transaction timeout
        "25P04",  # transaction timeout
    }
)
GUARD = "OB001"  # of our own making
LOCKED = "55P03"  # a lock was waited for too long
CANCELLED = "57014"  # a statement took too long
NOT_OWNER = "OB002"  # and this
ABORTED = "25P02"  # the transaction was aborted by an earlier error
FULL = "53100"  # no room on the disk


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also where SQLAlchemy or Django wrapped it."""
    for link in _links(error):
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def code(error: BaseException) -> str | None:
    """What a database calls an error: its SQLSTATE, or the name that SQLite has for it."""
    names = (getattr(link, "sqlite_errorname", None) for link in _links(error))
    return sqlstate(error) or next(filter(None, names), None)


def is_full(error: BaseException) -> bool:
    """Whether the disk of the database is full."""
    codes = (getattr(link, "sqlite_errorcode", None) for link in _links(error))
    return sqlstate(error) == FULL or any(code in _SQLITE_FULL for code in codes)


def needs_rerun(error: BaseException) -> bool:
    """Whether the whole transaction has to be run again, whatever the message."""
    state = sqlstate(error)
    if state is not None:
        return state in RERUN or state.startswith(STRAINED)
    return any(_is_strained(link) for link in _links(error))


def is_conflict(error: BaseException) -> bool:
    """Whether it met another transaction: running it again at once may help."""
    return sqlstate(error) in RERUN


def is_impatient(error: BaseException) -> bool:
    """Whether a statement waited or ran for longer than the server's settings allow."""
    return sqlstate(error) in (LOCKED, CANCELLED)


def is_lost(error: BaseException) -> bool:
    """Whether the error says that the connection is gone."""
    state = sqlstate(error)
    return state is not None and (state in LOST or state.startswith("08"))


def is_guard(error: BaseException) -> bool:
    """Whether the guard found another transaction than that of the claim."""
    return sqlstate(error) == GUARD or any(
        "no such savepoint: oncebox_probe" in str(link) for link in _links(error)
    )


def is_missing_table(error: BaseException) -> bool:
    """Whether a table, function or schema of ours is not there."""
    if sqlstate(error) in ("42P01", "42883", "3F000"):
        return True
    return any(
        isinstance(link, sqlite3.OperationalError) and "no such table" in str(link)
        for link in _links(error)
    )


def is_busy(error: BaseException) -> bool:
    """Whether SQLite has another writer: for a claim of the caller's, one since it began to read.

    Inside of a handler it is not about our transaction, which is the writer.
    """
    codes = (getattr(link, "sqlite_errorcode", None) for link in _links(error))
    return any(code is not None and code & 0xFF == sqlite3.SQLITE_BUSY for code in codes)


_SQLITE_FULL = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE,  # the file beside it that all its users share cannot grow
)
_SQLITE_STRAINED = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)


def _is_strained(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary code: SQLITE_BUSY_SNAPSHOT is a SQLITE_BUSY too.
    return code is not None and code & 0xFF in _SQLITE_STRAINED


def _links(error: BaseException) -> Iterator[BaseException]:
    """The error, what SQLAlchemy keeps as `orig`, and what Django keeps as its cause."""
    yield error
    for link in (getattr(error, "orig", None), error.__cause__):
        if isinstance(link, BaseException) and link is not error:
            yield link
            deeper = getattr(link, "__cause__", None)
            if isinstance(deeper, BaseException):
                yield deeper
