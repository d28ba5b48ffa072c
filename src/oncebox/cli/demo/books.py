"""The books of the demo: accounts and a ledger, on SQLite or PostgreSQL."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from oncebox.cli.demo.stream import ACCOUNTS

_TABLES = (
    "CREATE TABLE accounts (name text PRIMARY KEY, cents bigint NOT NULL)",
    "CREATE TABLE ledger (order_number text NOT NULL, account text NOT NULL REFERENCES accounts, "
    "cents bigint NOT NULL)",
)
_NAIVE = "CREATE TABLE processed (event_id text PRIMARY KEY)"


class Books(Protocol):
    """A database with accounts and a ledger."""

    url: str

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        """Execute one statement and commit; returns its rows. Parameters are ?."""
        ...

    def drop(self) -> None:
        """Remove everything."""
        ...


class SqliteBooks:
    """Books in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"
        self.execute("PRAGMA journal_mode=WAL")

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            connection.execute("PRAGMA foreign_keys=ON")
            rows = connection.execute(sql, params).fetchall()
            connection.commit()
            return rows

    def drop(self) -> None:
        """Nothing to do: the demo removes the folder."""


class PostgresBooks:
    """Books in their own schema, which is first in the search_path of `url`."""

    def __init__(self, url: str, name: str) -> None:
        self._schema = f"oncebox_demo_{name}_{secrets.token_hex(3)}"
        self.url = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{self._schema}"
        self.execute(f"CREATE SCHEMA {self._schema}")

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("?", "%s"), params or None)
            return cursor.fetchall() if cursor.description else []

    def drop(self) -> None:
        self.execute(f"DROP SCHEMA {self._schema} CASCADE")


def books_at(url: str, name: str) -> Books:
    """The books behind a URL: a file of this name in a folder, or a schema of a database."""
    if url.startswith("sqlite:///"):
        return SqliteBooks(Path(url.removeprefix("sqlite:///")) / f"{name}.db")
    return PostgresBooks(url, name)


def open_books(books: Books, *, naive: bool) -> None:
    """Create the tables and the accounts."""
    for table in (*_TABLES, *((_NAIVE,) if naive else ())):
        books.execute(table)
    for name in ACCOUNTS:
        books.execute("INSERT INTO accounts (name, cents) VALUES (?, 0)", name)


def booked(books: Books) -> tuple[int, int]:
    """The number of payments in the ledger, and the sum of all accounts."""
    payments = books.execute("SELECT count(*) FROM ledger")[0][0]
    cents = books.execute("SELECT coalesce(sum(cents), 0) FROM accounts")[0][0]
    return int(payments), int(cents)
