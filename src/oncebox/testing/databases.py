"""Temporary databases: move your own inbox to one for the time of a test."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

from oncebox.errors import ConfigurationError
from oncebox.inbox import Inbox
from oncebox.storage.drivers.connect import adapter
from oncebox.storage.drivers.contract import DatabaseTarget

OPERATIONS = ("archives", "dead_letters", "gaps", "messages", "purge", "replays")
"""Attributes of an inbox to whose objects a test may hold a reference."""


@contextmanager
def use_database(inbox: Inbox, database: DatabaseTarget, **options: Any) -> Iterator[Inbox]:
    """Move an inbox to another database inside the block, with its handlers and options.

    The inbox object itself changes, so every module that imported it uses the other database.
    Options of Inbox, such as retry=, replace those of the inbox. Handlers that are registered
    inside the block are removed at its end. Nothing is migrated or closed: close the inbox before
    the end of the block.
    """
    arguments: dict[str, Any] = {**inbox._arguments, **options, "database": database}
    moved = Inbox(**arguments)
    moved._registry.take_over(inbox._registry)
    parts = [inbox, *(getattr(inbox, name) for name in OPERATIONS)]
    before = [(part, dict(vars(part))) for part in parts]
    for name in OPERATIONS:
        vars(getattr(inbox, name)).update(vars(getattr(moved, name)))
    vars(inbox).update({n: value for n, value in vars(moved).items() if n not in OPERATIONS})
    try:
        yield inbox
    finally:
        for part, values in before:
            vars(part).clear()
            vars(part).update(values)


class TemporaryDatabase:
    """Moves an inbox to an empty database inside a `with` or `async with` block.

    Without a server it is a SQLite file. `server` is the URL of a PostgreSQL server: a database is
    created there and dropped at the end. The tables of oncebox are created; create your own with
    execute(). Options of Inbox, such as retry=, replace those of the inbox inside the block. Its
    on_dead hooks are not called there: pass on_dead= to call some.
    """

    def __init__(
        self,
        inbox: Inbox,
        server: str | None = None,
        *,
        folder: Path | None = None,
        **options: Any,
    ) -> None:
        self._inbox = inbox
        self._server = server
        self._folder = folder
        self._options = {"on_dead": None, **options}
        self._stack = ExitStack()
        self._url: str | None = None

    @property
    def url(self) -> str:
        """The URL of the temporary database. Raises ConfigurationError before the block."""
        if self._url is None:
            raise ConfigurationError(
                "the temporary database does not exist before its block: write `with "
                "TemporaryDatabase(inbox) as database:`, or `with temporary_database(inbox) as "
                "database:`"
            )
        return self._url

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Execute a statement by sqlite3 or psycopg and commit. Returns its rows."""
        with closing(_connect(self.url)) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            inbox = self._move(stack)
            if inbox.is_async:
                raise ConfigurationError("this inbox is async: use async with")
            stack.callback(inbox.close)
            inbox.migrate()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            inbox = self._move(stack)
            if not inbox.is_async and inbox._registry.is_async is not None:
                raise ConfigurationError("this inbox is sync: use with")
            await inbox.amigrate()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._stack:
            await self._inbox.aclose()

    def _move(self, stack: ExitStack) -> Inbox:
        """Create the database and move the inbox; the stack undoes both."""
        _check_has_no_django(self._inbox)
        if self._server is None:
            folder = self._folder or stack.enter_context(tempfile.TemporaryDirectory())
            self._url = f"{_sqlite_scheme(self._inbox)}:///{folder}/{_new_name()}.db"
        else:
            self._url = stack.enter_context(_created(self._server))
        return stack.enter_context(use_database(self._inbox, self.url, **self._options))


def _check_has_no_django(inbox: Inbox) -> None:
    """Raise ConfigurationError if handlers may write by Django, whose database stays the same."""
    if ".drivers.django." in type(inbox._arguments["database"]).__module__:
        raise ConfigurationError(
            "this inbox uses Django(): use django.test.TestCase or pytest-django"
        )


def _sqlite_scheme(inbox: Inbox) -> str:
    """The scheme of the inbox's own URL if it names a SQLite file, so that the driver stays."""
    scheme = str(inbox._arguments["database"]).partition("://")[0]
    return scheme if scheme.startswith("sqlite") else "sqlite"


def _new_name() -> str:
    return f"oncebox_test_{uuid4().hex[:12]}"


@contextmanager
def _created(server: str) -> Iterator[str]:
    """Create a database on a PostgreSQL server. Yields its URL, and drops it at the end."""
    if not server.startswith("postgres"):
        raise ConfigurationError(f"server is the URL of a PostgreSQL server, got {server!r}")
    name = _new_name()
    with closing(_connect(server)) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield _url_of(server, name)
    finally:
        with closing(_connect(server)) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _url_of(server: str, name: str) -> str:
    """The URL of another database of the server."""
    parts = urlsplit(server)
    query = urlencode([(k, v) for k, v in parse_qsl(parts.query) if k != "dbname"])
    return f"{parts.scheme}://{parts.netloc}/{name}{'?' if query else ''}{query}"


def _connect(url: str) -> Any:
    """A connection in autocommit mode, whatever the driver of the URL."""
    scheme, _, rest = url.partition("://")
    if scheme.startswith("sqlite"):
        return sqlite3.connect(rest.removeprefix("/"), isolation_level=None)
    psycopg = adapter("psycopg").psycopg
    return psycopg.connect(f"postgresql://{rest}", autocommit=True)
