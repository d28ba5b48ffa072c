"""Choose the store for a database."""

from __future__ import annotations

from oncebox.storage.contract import Store
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sql.names import Names
from oncebox.storage.sqlite import SqliteStore


def store_for(dialect: str, names: Names) -> Store:
    """The store for a dialect."""
    return PostgresStore(names) if dialect == "postgres" else SqliteStore(names)
