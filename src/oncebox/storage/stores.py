"""Choose the store for a database."""

from __future__ import annotations

from collections.abc import Callable

from oncebox.errors import ConfigurationError
from oncebox.storage.contract import Store
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.sql.names import Names
from oncebox.storage.sqlite import SqliteStore

_STORES: dict[str, Callable[[Names], Store]] = {"postgres": PostgresStore, "sqlite": SqliteStore}


def store_for(dialect: str, names: Names) -> Store:
    """The store for a dialect. Raises ConfigurationError."""
    if dialect not in _STORES:
        known = " and ".join(_STORES)
        raise ConfigurationError(f"there is no store for the database {dialect!r}, only {known}")
    return _STORES[dialect](names)
