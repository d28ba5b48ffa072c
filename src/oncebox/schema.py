"""Schema: making the tables, and making sure that they fit the code."""

from __future__ import annotations

from oncebox.database import acquire, give_up
from oncebox.database.contract import Database
from oncebox.errors import DatabaseUnavailable
from oncebox.store import migrations
from oncebox.store.contract import Steps, Store

TRIES = 4


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
            yield from give_up(database, work)
            raise
        yield from database.release(work)
    finally:
        yield from database.close()
    return applied


def check_schema(database: Database, store: Store) -> Steps[None]:
    """Raise SchemaMissing or CodeTooOld unless the tables fit this code."""
    for _ in range(TRIES):
        try:
            found = yield from _version(database, store)
        except _Lost:  # a connection that was idle while the server went away: look for a live one
            yield from database.recover()
        else:
            return migrations.check(store.migrations, found)
    raise DatabaseUnavailable


def _version(database: Database, store: Store) -> Steps[tuple[int, int] | None]:
    work = yield from acquire(database)
    try:
        yield from work.begin()
        return (yield from store.version(work))
    except Exception as error:
        if work.is_lost(error):
            raise _Lost from error
        raise
    finally:
        yield from give_up(database, work)


class _Lost(Exception):
    """The connection is gone."""
