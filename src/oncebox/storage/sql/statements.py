"""Statements: read the named SQL statements and migrations of the .sql files."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

from oncebox.storage.sql.names import Names

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_SERVES = re.compile(r"^(?:-- )?serves: (\d+)\n", re.MULTILINE)
_TOPIC = re.compile(r"^(\w+)$", re.MULTILINE)
_MADE = re.compile(r'CREATE (TABLE|SEQUENCE|VIEW|FUNCTION) ((?:"\w+"\.)?"\w+")')
_NUMBERED = re.compile(r'AS IDENTITY \(SEQUENCE NAME ((?:"\w+"\.)?"\w+")')
_INDEXED = re.compile(r'CREATE (?:UNIQUE )?INDEX ("\w+") ON ((?:"\w+"\.)?)')
_ADDED = re.compile(r'ALTER TABLE ((?:"\w+"\.)?"\w+") ADD COLUMN (\w+)')
_COMMENT = re.compile(r"^--[^\n]*\n", re.MULTILINE)


class Statement(msgspec.Struct, frozen=True):
    """A statement, with the comment that describes it."""

    name: str
    text: str

    @property
    def sql(self) -> str:
        """The statement to execute, without its comments and without the semicolon at its end."""
        return _COMMENT.sub("", self.text, count=0).strip().removesuffix(";")


class Migration(msgspec.Struct, frozen=True):
    """A version of the schema, and the statements that lead to it from the version before."""

    version: int
    name: str
    serves: int
    """The oldest version that code must know to work with this version of the schema."""
    statements: list[Statement]

    def made(self) -> list[tuple[str, str]]:
        """What this migration creates: the kind, such as TABLE, and the quoted name."""
        made = [
            (found[1], found[2]) for s in self.statements for found in [_MADE.match(s.sql)] if found
        ]
        numbered = [name for s in self.statements for name in _NUMBERED.findall(s.sql)]
        return made + [("SEQUENCE", name) for name in numbered]

    def undone(self) -> list[str]:
        """The statements that undo this migration, in order."""
        found = (_undo(statement.sql) for statement in reversed(self.statements))
        return [sql for sql in found if sql is not None]


def _undo(sql: str) -> str | None:
    """The statement that undoes a statement; None if undoing the others is enough."""
    if made := _MADE.match(sql):
        return f"DROP {made[1]} {made[2]}"
    if indexed := _INDEXED.match(sql):
        return f"DROP INDEX {indexed[2]}{indexed[1]}"
    if added := _ADDED.match(sql):
        return f"ALTER TABLE {added[1]} DROP COLUMN {added[2]}"
    return None


@cache
def _read(dialect: str, *path: str) -> str:
    return files("oncebox.storage").joinpath(dialect, *path).read_text("utf-8")


def _split(text: str, names: Names) -> list[Statement]:
    parts = _NAME.split(text)[1:]
    return [
        Statement(name, names.fill(body).strip())
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def statements(dialect: str, names: Names) -> dict[str, str]:
    """The statements of a dialect, ready to execute."""
    folder = files("oncebox.storage").joinpath(dialect)
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    texts = (_read(dialect, file) for file in found)
    return {s.name: s.sql for text in texts for s in _split(text, names)}


def migrations(dialect: str, names: Names) -> list[Migration]:
    """The migrations of a dialect, oldest first: each is a file, or a folder of files."""
    folder = files("oncebox.storage").joinpath(dialect, "migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return [_migration(dialect, entry, names) for entry in found]


def _migration(dialect: str, entry: str, names: Names) -> Migration:
    head, texts = _contents(dialect, entry)
    serves = _SERVES.search(head)
    assert serves, f"{entry} does not say which code it serves"
    return Migration(
        version=int(entry[:4]),
        name=entry.removesuffix(".sql"),
        serves=int(serves[1]),
        statements=[statement for text in texts for statement in _split(text, names)],
    )


def _contents(dialect: str, entry: str) -> tuple[str, list[str]]:
    """The text that names the oldest code a migration serves, and the texts of its statements."""
    if entry.endswith(".sql"):
        text = _read(dialect, "migrations", entry)
        return text, [text]
    order = _read(dialect, "migrations", entry, "order.txt")
    topics = _TOPIC.findall(order)
    return order, [_read(dialect, "migrations", entry, f"{topic}.sql") for topic in topics]
