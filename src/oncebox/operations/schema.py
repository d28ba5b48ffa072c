"""Schema: create the tables, and check that they match the code."""

from __future__ import annotations

from functools import partial

from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    RetryTransaction,
    database_unavailable,
    read,
    with_connection,
)
from oncebox.storage.sql import migrations
from oncebox.storage.steps import Steps


def migrate(database: Database, store: Store, *, claims_only: bool = False) -> Steps[list[str]]:
    """Create or upgrade the tables in one transaction. Returns the applied migrations."""
    yield from database.open()
    try:
        return (yield from with_connection(database, partial(_migrate, store, claims_only)))
    except RetryTransaction as again:
        raise database_unavailable(again.__cause__) from again.__cause__
    finally:
        yield from database.close()


def _migrate(store: Store, claims_only: bool, work: Work) -> Steps[list[str]]:
    yield from work.begin()  # without a time limit: building an index may take hours
    applied = yield from store.migrate(work, claims_only=claims_only)
    yield from work.commit()
    return applied


def check_schema(database: Database, store: Store) -> Steps[None]:
    """Raise SchemaMissing or CodeTooOld unless this code can work with the tables."""
    check_file = getattr(database, "check_file", None)  # only of a SQLite file
    where = f" in {check_file()}" if check_file is not None else ""
    remedy = getattr(database, "schema_remedy", migrations.REMEDY)
    found = yield from read(database, store.version)
    migrations.check(store.migrations, found, remedy, where)
