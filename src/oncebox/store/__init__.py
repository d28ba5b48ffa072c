"""Stores: the SQL of each database, behind one contract."""

from __future__ import annotations

from oncebox.store.contract import Store
from oncebox.store.names import Names
from oncebox.store.postgres import PostgresStore
from oncebox.store.sqlite import SqliteStore


def store_for(dialect: str, names: Names) -> Store:
    """The store that speaks this dialect."""
    return PostgresStore(names) if dialect == "postgres" else SqliteStore(names)


__all__ = ["Names", "PostgresStore", "SqliteStore", "Store", "store_for"]
