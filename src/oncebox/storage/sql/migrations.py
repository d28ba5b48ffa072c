"""Migrations: create the tables, upgrade them, and print the statements for review."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oncebox.errors import CodeTooOld, ConfigurationError, SchemaMissing
from oncebox.storage.contract import Connection
from oncebox.storage.sql.names import Names
from oncebox.storage.sql.statements import Migration, migrations, statements
from oncebox.storage.steps import Steps

CLAIMS = 1
"""The version of a schema that has only the tables of claim()."""


class SqlSchema:
    """The statements of a store, its migrations and its version."""

    dialect: str

    def __init__(self, names: Names) -> None:
        self.names = names
        self.migrations = migrations(self.dialect, names)
        self._sql = statements(self.dialect, names)

    def _meta_name(self) -> str:
        """The name of the version table, in the form that has_schema_version takes."""
        return self.names.quoted("schema_version")

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]:
        """The version of the schema and the oldest code it serves; None if there are no tables."""
        there = yield from connection.fetch(
            self._sql["has_schema_version"], {"meta": self._meta_name()}
        )
        if not there[0][0]:
            return None
        found = yield from connection.fetch(self._sql["read_schema_version"], {})
        return (found[0][0], found[0][1]) if found else None

    def migrate(self, connection: Connection, *, claims_only: bool = False) -> Steps[list[str]]:
        """Bring the schema up to date; returns the names of the applied migrations."""
        found = yield from self.version(connection)
        todo = missing(self._wanted(claims_only), found[0] if found else 0)
        if todo:
            yield from connection.execute(self._sql["create_schema_version"], {})
        for migration in todo:
            for statement in migration.statements:
                yield from connection.execute(statement.sql, {})
        if todo:
            newest = {"version": todo[-1].version, "serves": todo[-1].serves}
            yield from connection.execute(self._sql["clear_schema_version"], {})
            yield from connection.execute(self._sql["write_schema_version"], newest)
        return [migration.name for migration in todo]

    def script(self, *, claims_only: bool = False) -> str:
        """The statements of all migrations for review, with their descriptions."""
        wanted = executed(self._wanted(claims_only), self._sql)
        return "\n\n".join(text.rstrip(";") + ";" for text in wanted) + "\n"

    def grants(self, role: str, *, claims_only: bool = False) -> str:
        """The statements that let a role use the tables, and not change them."""
        made = [pair for migration in self._wanted(claims_only) for pair in migration.made()]
        kinds = {kind: [name for k, name in made if k == kind] for kind, _ in made}
        lines = [f'USAGE ON SCHEMA "{self.names.schema}"'] if self.names.schema else []
        lines.append(f"SELECT ON {self.names.quoted('schema_version')}")
        needed = _NEEDED
        if claims_only:
            needed = {**_NEEDED, "TABLE": "SELECT, INSERT, DELETE ON"}
            lines.append(f"SELECT ON {self.names.quoted('consumer')}")
            kinds["TABLE"].remove(self.names.quoted("consumer"))
        lines += [f"{needed[kind]} {', '.join(names)}" for kind, names in kinds.items()]
        return "".join(f"GRANT {line} TO {_quoted_role(role)};\n" for line in lines)

    def _wanted(self, claims_only: bool) -> list[Migration]:
        return self.migrations[:CLAIMS] if claims_only else self.migrations


def _quoted_role(role: str) -> str:
    """The name of a role, quoted. Raises ConfigurationError."""
    if not isinstance(role, str) or not role or "\0" in role:
        raise ConfigurationError(f"grants need the name of a role, got {role!r}")
    doubled = role.replace('"', '""')
    return f'"{doubled}"'


_NEEDED = {
    "TABLE": "SELECT, INSERT, UPDATE, DELETE ON",
    "VIEW": "SELECT ON",
    "SEQUENCE": "USAGE, SELECT ON SEQUENCE",
    "FUNCTION": "EXECUTE ON FUNCTION",
}
"""The privileges that a worker needs, by what a migration creates."""

REMEDY = "call inbox.migrate()"
"""What creates or upgrades the tables."""


def missing(history: list[Migration], version: int) -> list[Migration]:
    """The migrations that a schema of this version still needs."""
    return [migration for migration in history if migration.version > version]


def check(
    history: list[Migration], found: tuple[int, int] | None, remedy: str = REMEDY, where: str = ""
) -> None:
    """Raise unless this code can work with the schema that was found.

    Errors name the remedy, and where the tables are missing.

    A newer schema is accepted if it still serves this code. This makes rolling deploys possible.
    """
    newest = history[-1].version
    if found is None:
        raise SchemaMissing(f"the tables of oncebox are missing{where}: {remedy}")
    version, serves = found
    if version == CLAIMS < newest:
        raise SchemaMissing(
            f"the schema has only the claims tables: {remedy} to add the others; existing claims "
            "are kept"
        )
    if version < newest:
        raise SchemaMissing(
            f"the tables of oncebox have version {version}, this code needs {newest}: {remedy}"
        )
    if serves > newest:
        raise CodeTooOld(
            f"the tables have version {version} and need an oncebox that knows version {serves} or "
            f"later; this one knows {newest}: upgrade oncebox"
        )


def executed(history: list[Migration], sql: Mapping[str, str]) -> Iterator[str]:
    """The statements of these migrations without parameters, for reviews and other tools."""
    yield sql["create_schema_version"]
    for migration in history:
        yield from (statement.text for statement in migration.statements)
    yield from written(history[-1], sql)


def written(newest: Migration, sql: Mapping[str, str]) -> Iterator[str]:
    """The statements that record a version, with its numbers in place."""
    yield sql["clear_schema_version"]
    numbered = sql["write_schema_version"].replace(":version", str(newest.version))
    yield numbered.replace(":serves", str(newest.serves))
