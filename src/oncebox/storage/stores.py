"""Stores: the SQL of each database, behind one contract."""

from __future__ import annotations

from oncebox.storage.contract import Store
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sql.names import Names
from oncebox.storage.sqlite import SqliteStore


def store_for(dialect: str, names: Names) -> Store:
    """The store that speaks this dialect."""
    return PostgresStore(names) if dialect == "postgres" else SqliteStore(names)
