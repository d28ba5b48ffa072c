"""Statements: the named, described SQL of the .sql files beside this module."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

from oncebox.store.names import Names

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_SERVES = re.compile(r"^-- serves: (\d+)\n", re.MULTILINE)
_MADE = re.compile(r'CREATE (TABLE|SEQUENCE|VIEW|FUNCTION) ((?:"\w+"\.)?"\w+")')
_INDEXED = re.compile(r'CREATE (?:UNIQUE )?INDEX ("\w+") ON ((?:"\w+"\.)?)')
_ADDED = re.compile(r'ALTER TABLE ((?:"\w+"\.)?"\w+") ADD COLUMN (\w+)')
_COMMENT = re.compile(r"^--[^\n]*\n", re.MULTILINE)


class Statement(msgspec.Struct, frozen=True):
    """One statement, with the comment that describes it."""

    name: str
    text: str

    @property
    def sql(self) -> str:
        """What is executed: no leading comment, no final semicolon."""
        return _COMMENT.sub("", self.text, count=0).strip().removesuffix(";")


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema's history."""

    version: int
    name: str
    serves: int
    """The oldest version that code must know to work with the schema after this step."""
    statements: list[Statement]

    def undone(self) -> list[str]:
        """The statements that take this step back, in order."""
        found = (_undo(statement.sql) for statement in reversed(self.statements))
        return [sql for sql in found if sql is not None]


def _undo(sql: str) -> str | None:
    """What takes a statement back; None where nothing is left of it once the others are."""
    if made := _MADE.match(sql):
        return f"DROP {made[1]} {made[2]}"
    if indexed := _INDEXED.match(sql):
        return f"DROP INDEX {indexed[2]}{indexed[1]}"
    if added := _ADDED.match(sql):
        return f"ALTER TABLE {added[1]} DROP COLUMN {added[2]}"
    return None


@cache
def _read(dialect: str, file: str) -> str:
    return files("oncebox.store").joinpath(dialect, file).read_text("utf-8")


def _split(text: str, names: Names) -> list[Statement]:
    parts = _NAME.split(text)[1:]
    return [
        Statement(name, names.fill(body).strip())
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def statements(dialect: str, names: Names) -> dict[str, str]:
    """The statements of a dialect, ready to execute."""
    texts = (_read(dialect, file) for file in _files(dialect) if not _is_migration(file))
    return {s.name: s.sql for text in texts for s in _split(text, names)}


def _files(dialect: str) -> list[str]:
    folder = files("oncebox.store").joinpath(dialect)
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))


def _is_migration(file: str) -> bool:
    return file[:4].isdecimal()


def migrations(dialect: str, names: Names) -> list[Migration]:
    """The schema's history, oldest first."""
    return [_migration(dialect, file, names) for file in _files(dialect) if _is_migration(file)]


def _migration(dialect: str, file: str, names: Names) -> Migration:
    text = _read(dialect, file)
    serves = _SERVES.search(text)
    assert serves, f"{file} does not say which code it serves"
    return Migration(
        version=int(file[:4]),
        name=file.removesuffix(".sql"),
        serves=int(serves[1]),
        statements=_split(text, names),
    )
