"""The books of the demo: accounts and a ledger, on SQLite or PostgreSQL."""

from __future__ import annotations

import secrets
import shlex
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from oncebox.cli.demo.stream import ACCOUNTS
from oncebox.errors import MissingExtra

_TABLES = (
    "CREATE TABLE accounts (name text PRIMARY KEY, cents bigint NOT NULL)",
    "CREATE TABLE ledger (event_id text NOT NULL, order_number text NOT NULL, "
    "account text NOT NULL REFERENCES accounts, cents bigint NOT NULL)",
    "CREATE TABLE sent (order_number text PRIMARY KEY, cents bigint NOT NULL)",
)
_NAIVE = "CREATE TABLE processed (event_id text PRIMARY KEY)"

CHECK = """\
SELECT (SELECT count(*) FROM sent) AS sent,
       count(DISTINCT order_number) AS booked,
       count(*) - count(DISTINCT event_id) AS twice_after_kill,
       count(DISTINCT event_id) - count(DISTINCT order_number)
         AS twice_by_double_click,
       (SELECT count(*) FROM sent WHERE order_number NOT IN
         (SELECT order_number FROM ledger)) AS lost,
       (SELECT sum(cents) FROM accounts) - (SELECT sum(cents) FROM sent)
         AS cents_off
  FROM ledger;"""
"""Computes a Balance. Users paste it into sqlite3 or psql.

A row of the ledger with the same event as another row comes from a redelivery: the process was
killed before it recorded the event. A row with another event for the same order is a double click.
"""


class Balance(msgspec.Struct, frozen=True):
    """What the tables of one side show."""

    sent: int = 0
    """Payments that the shop sent; 0 before the end of the run."""
    booked: int = 0
    """Payments that were booked at least once."""
    twice_after_kill: int = 0
    """Bookings too many, because of an event that was processed again after kill -9."""
    twice_by_click: int = 0
    """Bookings too many, because of a second event for the same order."""
    lost: int = 0
    """Payments that were sent and not booked; 0 before the end of the run."""
    cents_off: int = 0
    """The sum of all accounts minus the sum of all payments."""

    @property
    def is_right(self) -> bool:
        """True if each payment is booked exactly once."""
        return self == Balance(sent=self.sent, booked=self.sent)


class Books(Protocol):
    """A database with accounts and a ledger."""

    url: str
    open_with: str
    """The command that opens the database."""

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        """Execute one statement and commit; returns its rows. Parameters are ?."""
        ...

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once per row, and commit."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def drop(self) -> None:
        """Remove everything."""
        ...


class SqliteBooks:
    """Books in a file."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.open_with = f"sqlite3 {shlex.quote(str(path))}"
        # Open until the end: whichever connection is closed last moves the log into the file, and
        # would otherwise do so after each kill.
        self._connection = sqlite3.connect(path, timeout=30)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA foreign_keys=ON")

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        rows = self._connection.execute(sql, params).fetchall()
        self._connection.commit()
        return rows

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def drop(self) -> None:
        """Nothing to do: the demo removes the folder."""


class PostgresBooks:
    """Books in their own schema, which is first in the search_path of `url`."""

    def __init__(self, url: str, name: str) -> None:
        self._schema = f"oncebox_demo_{name}_{secrets.token_hex(3)}"
        self.url = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{self._schema}"
        self.open_with = f"psql {shlex.quote(self.url)}"
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra("psycopg", "postgres") from error
        self._connection = psycopg.connect(self.url, autocommit=True, connect_timeout=10)
        self.execute(f"CREATE SCHEMA {self._schema}")

    def execute(self, sql: str, *params: Any) -> Sequence[Any]:
        cursor = self._connection.execute(sql.replace("?", "%s").encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), list(rows))

    def close(self) -> None:
        self._connection.close()

    def drop(self) -> None:
        self.execute(f"DROP SCHEMA {self._schema} CASCADE")


def books_at(url: str, name: str) -> Books:
    """The books behind a URL: a file of this name in a folder, or a schema of a database."""
    if url.startswith("sqlite:///"):
        return SqliteBooks(Path(url.removeprefix("sqlite:///")) / f"{name}.db")
    return PostgresBooks(url, name)


def create_tables(books: Books, *, naive: bool) -> None:
    """Create the tables and the accounts."""
    for table in (*_TABLES, *((_NAIVE,) if naive else ())):
        books.execute(table)
    for name in ACCOUNTS:
        open_account(books, name)


def open_account(books: Books, name: str) -> None:
    """Open an account."""
    books.execute("INSERT INTO accounts (name, cents) VALUES (?, 0)", name)


def write_sent(books: Books, stream: Path) -> None:
    """Write the payments that the shop sent into the table `sent`, from the stream itself."""
    with stream.open("rb") as lines:
        events = [msgspec.json.decode(line) for line in lines]
    payments = {event["order"]: event["cents"] for event in events}
    books.insert("INSERT INTO sent (order_number, cents) VALUES (?, ?)", payments.items())


def balance(books: Books) -> Balance:
    """Compute the balance from the tables."""
    return Balance(*(int(value or 0) for value in books.execute(CHECK.rstrip(";"))[0]))
