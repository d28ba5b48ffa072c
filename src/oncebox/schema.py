"""Schema: making the tables, and making sure that they fit the code."""

from __future__ import annotations

from oncebox.database import acquire
from oncebox.database.contract import Database
from oncebox.store import migrations
from oncebox.store.contract import Steps, Store


def migrate(database: Database, store: Store) -> Steps[list[str]]:
    """Bring the tables up to date in one transaction; returns what was applied."""
    yield from database.open()
    try:
        work = yield from acquire(database)
        try:
            yield from work.begin()
            applied = yield from store.migrate(work)
            yield from work.commit("SELECT 1", {})
        except BaseException:
            yield from work.rollback()
            raise
        finally:
            yield from database.release(work)
    finally:
        yield from database.close()
    return applied


def check_schema(database: Database, store: Store) -> Steps[None]:
    """Raise SchemaMissing or CodeTooOld unless the tables fit this code."""
    work = yield from acquire(database)
    try:
        yield from work.begin()
        found = yield from store.version(work)
    finally:
        yield from work.rollback()
        yield from database.release(work)
    migrations.check(store.migrations, found)
