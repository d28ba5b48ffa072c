"""Find out whether a transaction has ended, from the driver's connection, without a round trip."""

from __future__ import annotations

import sqlite3
from typing import Any

IDLE = 0
"""The status of a libpq connection that is not in a transaction."""


def has_ended(connection: Any) -> bool:
    """True if a driver's connection is no longer in its transaction.

    Works for sqlite3, aiosqlite, psycopg, psycopg2 and asyncpg. False for other drivers, and for a
    connection that broke.
    """
    if hasattr(connection, "info"):  # psycopg, psycopg2
        return _closed_by_caller(connection) or connection.info.transaction_status == IDLE
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return not connection.is_closed() and not connection.is_in_transaction()
    try:
        return not getattr(connection, "in_transaction", True)  # sqlite3, aiosqlite
    except (sqlite3.ProgrammingError, ValueError):  # it is closed
        return True


def _closed_by_caller(connection: Any) -> bool:
    # psycopg2 sets closed to 2 if the connection broke; psycopg has a property for that.
    return connection.closed == 1 and not getattr(connection, "broken", False)
