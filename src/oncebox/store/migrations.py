"""Migrations: how the schema is brought up to date, and how it is reviewed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oncebox.errors import CodeTooOld, SchemaMissing
from oncebox.store.contract import Connection, Steps
from oncebox.store.names import Names
from oncebox.store.statements import Migration, migrations, statements


class Migrated:
    """A store as far as its schema is concerned: its statements, its history, its version."""

    dialect: str

    def __init__(self, names: Names) -> None:
        self.names = names
        self.migrations = migrations(self.dialect, names)
        self._sql = statements(self.dialect, names)

    def _meta_name(self) -> str:
        """The name by which the database knows the table of the version."""
        return self.names.quoted("meta")

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]:
        """The schema's version and the oldest code it serves; None where there are no tables."""
        there = yield from connection.fetch(self._sql["has_meta"], {"meta": self._meta_name()})
        if not there[0][0]:
            return None
        found = yield from connection.fetch(self._sql["read_meta"], {})
        return (found[0][0], found[0][1]) if found else None

    def migrate(self, connection: Connection) -> Steps[list[str]]:
        """Bring the schema up to date; returns the names of the migrations that were applied."""
        found = yield from self.version(connection)
        todo = missing(self.migrations, found[0] if found else 0)
        if todo:
            yield from connection.execute(self._sql["create_meta"], {})
        for migration in todo:
            for statement in migration.statements:
                yield from connection.execute(statement.sql, {})
        if todo:
            newest = {"version": todo[-1].version, "serves": todo[-1].serves}
            yield from connection.execute(self._sql["clear_meta"], {})
            yield from connection.execute(self._sql["write_meta"], newest)
        return [migration.name for migration in todo]

    def script(self) -> str:
        """All migrations as SQL for review, with their descriptions."""
        texts = (text.rstrip(";") + ";" for text in executed(self.migrations, self._sql))
        return "\n\n".join(texts) + "\n"


_REMEDY = (
    "call inbox.migrate(); with Django add 'oncebox.django' to INSTALLED_APPS and run "
    "manage.py migrate"
)


def missing(history: list[Migration], version: int) -> list[Migration]:
    """The steps that a schema of this version still needs."""
    return [migration for migration in history if migration.version > version]


def check(history: list[Migration], found: tuple[int, int] | None) -> None:
    """Raise unless this code can work with the schema that was found.

    A schema newer than the code is fine as long as it still serves it: so rolling deploys work.
    """
    newest = history[-1].version
    if found is None:
        raise SchemaMissing(f"the tables of oncebox are missing: {_REMEDY}")
    version, serves = found
    if version < newest:
        raise SchemaMissing(
            f"the tables of oncebox have version {version}, this code needs {newest}: {_REMEDY}"
        )
    if serves > newest:
        raise CodeTooOld(
            f"the tables of oncebox have version {version} and serve code that knows version "
            f"{serves}; this code knows {newest}: upgrade oncebox"
        )


def executed(history: list[Migration], sql: Mapping[str, str]) -> Iterator[str]:
    """The statements of these steps without parameters, for reviews and other people's tools."""
    yield sql["create_meta"]
    for migration in history:
        yield from (statement.text for statement in migration.statements)
    yield from written(history[-1], sql)


def written(newest: Migration, sql: Mapping[str, str]) -> Iterator[str]:
    """The statements that note a version, with its numbers in place."""
    yield sql["clear_meta"]
    numbered = sql["write_meta"].replace(":version", str(newest.version))
    yield numbered.replace(":serves", str(newest.serves))
