"""Migrations: how the schema is brought up to date, and how it is reviewed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from oncebox.errors import CodeTooOld, SchemaMissing
from oncebox.store.contract import Connection, Steps
from oncebox.store.statements import Migration


class Migrated(Protocol):
    """What has a history and a version."""

    migrations: list[Migration]

    def version(self, connection: Connection) -> Steps[tuple[int, int] | None]: ...


def missing(history: list[Migration], version: int) -> list[Migration]:
    """The steps that a schema of this version still needs."""
    return [migration for migration in history if migration.version > version]


def bring_up_to_date(
    store: Migrated, connection: Connection, sql: Mapping[str, str]
) -> Steps[list[str]]:
    """Apply the missing steps and write down the new version. The caller holds the lock."""
    found = yield from store.version(connection)
    todo = missing(store.migrations, found[0] if found else 0)
    for migration in todo:
        for statement in migration.statements:
            yield from connection.execute(statement.sql, {})
    if todo:
        newest = {"version": todo[-1].version, "serves": todo[-1].serves}
        yield from connection.execute(sql["clear_meta"], {})
        yield from connection.execute(sql["write_meta"], newest)
    return [migration.name for migration in todo]


def check(history: list[Migration], found: tuple[int, int] | None) -> None:
    """Raise unless this code can work with the schema that was found.

    A schema newer than the code is fine as long as it still serves it: so rolling deploys work.
    """
    newest = history[-1].version
    if found is None:
        raise SchemaMissing("the tables of oncebox are missing: call inbox.migrate()")
    version, serves = found
    if version < newest:
        raise SchemaMissing(
            f"the tables of oncebox have version {version}, this code needs {newest}: "
            "call inbox.migrate()"
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
    yield sql["clear_meta"]
    newest = history[-1]
    written = sql["write_meta"].replace(":version", str(newest.version))
    yield written.replace(":serves", str(newest.serves))


def script(history: list[Migration], sql: Mapping[str, str]) -> str:
    """All steps as one text for review, with their descriptions."""
    texts = (text.rstrip(";") + ";" for text in executed(history, sql))
    return "\n\n".join(texts) + "\n"
