"""Databases: from what the user gave us to transactions on it.

Drivers are imported where they are used: the core works without any of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from oncebox.database import faults
from oncebox.database.contract import Database, Work
from oncebox.errors import ConfigurationError, DatabaseUnavailable, MissingExtra
from oncebox.store.contract import Steps

T = TypeVar("T")

ADVICE = "nothing was committed, so settle nothing"

UNGUARDED: tuple[str, Mapping[str, Any]] = ("SELECT 1", {})
"""Where no handler ran, nothing has to be guarded."""

PAUSES = (0.05, 0.2, 0.8, 3.2)
"""Seconds between tries where the database stands in the way."""

_SCHEMES = {
    "sqlite": ("sqlite", None),
    "postgresql": ("postgres", None),
    "postgres": ("postgres", None),
    "postgresql+psycopg": ("postgres", None),
    "postgresql+psycopg2": ("postgres", False),
    "postgresql+asyncpg": ("postgres", True),
    "sqlite+pysqlite": ("sqlite", False),
    "sqlite+aiosqlite": ("sqlite", True),
}
_EXTRAS = {
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "sqlalchemy": "sqlalchemy",
    "greenlet": "sqlalchemy",
    "aiosqlite": "aiosqlite",
    "django": "django",
}


class Target(msgspec.Struct, frozen=True):
    """A database that is known, but not opened yet."""

    dialect: str
    is_async: bool | None
    """None: either, as the handlers want it."""
    make: Callable[[bool], Database]


def target(database: Any, *, pipeline: bool) -> Target:
    """What the user's `database` stands for. Raises ConfigurationError with a remedy."""
    if isinstance(database, str):
        return _from_url(database, pipeline)
    found = _from_object(database, pipeline)
    return Target(found.dialect, found.is_async, lambda is_async: found)


def acquire(database: Database) -> Steps[Work]:
    """A connection of one's own. Raises DatabaseUnavailable."""
    try:
        return (yield from database.acquire())
    except ConfigurationError:
        raise
    except Exception as error:
        raise DatabaseUnavailable(
            f"no connection to the database ({_told(error)}): {ADVICE}"
        ) from error


def give_up(database: Database, work: Any) -> Steps[None]:
    """Roll back and give the connection back, whatever happens on the way."""
    try:
        yield from work.rollback()
    finally:
        yield from database.release(work)


class Again(Exception):
    """The database stood in the way; its cause says how, and running it again may help."""

    def __init__(self, lost: bool) -> None:
        self.lost = lost
        """Whether the connection is gone, so that the end of a COMMIT may be unknown."""


def transact(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """One transaction on a connection of its own; `body` begins and commits it.

    Raises Again where nothing but the database stood in the way.
    """
    work = yield from acquire(database)
    try:
        result = yield from body(work)
    except GeneratorExit:  # nobody performs our calls any more
        raise
    except BaseException as error:
        lost = work.is_lost(error)
        yield from give_up(database, work)
        if lost:
            yield from database.recover()
        if isinstance(error, Exception) and (lost or _is_passing(error)):
            raise Again(lost) from error
        raise
    yield from database.release(work)
    return result


def committed(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """As transact(), for statements of ours alone: begun, committed, and tried more than once."""
    return (yield from _persistently(database, partial(_kept, body)))


def seen(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """What statements that only read answer; on SQLite they wait for nobody."""
    # Elsewhere they are committed as well: a rollback would let psycopg forget what it prepared.
    whole = _undone if database.dialect == "sqlite" else _kept
    return (yield from _persistently(database, partial(whole, body)))


def once(database: Database, body: Callable[[Work], Steps[T]]) -> Steps[T]:
    """As committed(), but tried once. Raises Again."""
    return (yield from transact(database, partial(_kept, body)))


def _persistently(database: Database, whole: Callable[[Work], Steps[T]]) -> Steps[T]:
    for pause in PAUSES:
        try:
            return (yield from transact(database, whole))
        except Again:
            yield partial(database.sleep, pause)
    try:
        return (yield from transact(database, whole))
    except Again as again:
        raise unavailable(again.__cause__) from again.__cause__


def _kept(body: Callable[[Work], Steps[T]], work: Work) -> Steps[T]:
    yield from work.begin()
    answer = yield from body(work)
    yield from work.commit(*UNGUARDED)
    return answer


def _undone(body: Callable[[Work], Steps[T]], work: Work) -> Steps[T]:
    """What a body answers; whatever it opened is given up, and nothing was begun."""
    answer = yield from body(work)
    yield from work.rollback()
    return answer


def _is_passing(error: Exception) -> bool:
    """Whether it may go away by itself. Errors of handlers do not come so far."""
    return faults.needs_rerun(error) or faults.is_impatient(error)


def is_crowded(error: DatabaseUnavailable) -> bool:
    """Whether the database is there, and somebody else has what is wanted for too long."""
    return isinstance(error.__cause__, Exception) and faults.is_impatient(error.__cause__)


def unavailable(error: BaseException | None) -> DatabaseUnavailable:
    """What is raised when the database does not let anything through."""
    return DatabaseUnavailable(f"{_told(error)}; {ADVICE}")


def _told(error: BaseException | None) -> str:
    """What an error says; SQLite speaks of a full disk in riddles."""
    full = "the disk is full: " if error is not None and faults.is_full(error) else ""
    return f"{full}{type(error).__name__}: {error}"


def borrow(connection: Any, *, is_async: bool) -> Steps[tuple[str, Any]]:
    """The dialect of the caller's connection, and the connection as a store sees it."""
    kind = _origin(connection)
    _check_is_connection(connection, kind, is_async)
    if kind == "sqlalchemy":
        if hasattr(connection, "get_bind"):  # a Session or an AsyncSession
            connection = yield connection.connection
        return _borrow_sqlalchemy(connection)
    if kind == "psycopg":
        return "postgres", adapter("psycopg").PsycopgWork.borrowed(connection)
    if kind in ("sqlite3", "aiosqlite"):
        return "sqlite", adapter("sqlite").SqliteWork.borrowed(connection)
    found = adapter("django")
    return found.DIALECTS[connection.vendor], found.DjangoWork.borrowed(connection)


def _check_is_connection(connection: Any, kind: str, is_async: bool) -> None:
    """Refuse what cannot be claimed on before anything is written."""
    wanted = {"sqlalchemy": "in_transaction", "django": "in_atomic_block"}.get(kind, "commit")
    if not kind or not hasattr(connection, wanted):
        raise ConfigurationError(
            f"claim() takes a connection of sqlite3, aiosqlite, psycopg, SQLAlchemy or Django, "
            f"not {type(connection).__qualname__}"
        )
    awaits = kind == "aiosqlite" or type(connection).__name__.startswith("Async")
    if awaits is not is_async:
        verb = "await inbox.aclaim()" if awaits else "inbox.claim()"
        raise ConfigurationError(f"a {type(connection).__qualname__} is claimed on by {verb}")


def _borrow_sqlalchemy(connection: Any) -> tuple[str, Any]:
    found = adapter("sqlalchemy")
    return found.dialect_of(connection), found.SqlAlchemyWork.borrowed(connection)


def _origin(thing: Any) -> str:
    """The library that an object's class, or one it derives from, comes from."""
    libraries = ("sqlalchemy", "psycopg_pool", "psycopg", "django", "aiosqlite", "sqlite3")
    roots = [cls.__module__.split(".")[0] for cls in type(thing).__mro__]
    return next((root for root in roots if root in libraries), "")


def _from_object(database: Any, pipeline: bool) -> Database:
    kind = _origin(database)
    if hasattr(database, "acquire") and hasattr(database, "dialect") and not kind:
        return database  # type: ignore[no-any-return]
    if kind == "psycopg_pool":
        return adapter("psycopg").PsycopgDatabase(database, pipeline=pipeline)  # type: ignore[no-any-return]
    if kind == "sqlalchemy" and hasattr(database, "connect") and hasattr(database, "dispose"):
        return adapter("sqlalchemy").SqlAlchemyDatabase(database)  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"the database of an inbox is a URL, a psycopg pool, a SQLAlchemy Engine or AsyncEngine, "
        f"or Django(alias), not {type(database).__qualname__}"
    )


def _from_url(url: str, pipeline: bool) -> Target:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError(_unknown_scheme(scheme if separator else url))
    dialect, is_async = _SCHEMES[scheme]
    if "+" in scheme:
        _check_driver(scheme.partition("+")[2])
        found = adapter("sqlalchemy").SqlAlchemyDatabase
        make = lambda colour: found.from_url(url, is_async=colour)  # noqa: E731
    elif dialect == "sqlite":
        found = adapter("sqlite").SqliteDatabase
        found.from_url(url, is_async=False)  # names a file, or raises now
        make = lambda colour: found.from_url(url, is_async=colour)  # noqa: E731
    else:
        found = adapter("psycopg").PsycopgDatabase
        found.check_url(url)
        make = lambda colour: found.from_url(url, is_async=colour, pipeline=pipeline)  # noqa: E731
    return Target(dialect, is_async, make)


def _check_driver(name: str) -> None:
    module = {"pysqlite": "sqlite3"}.get(name, name)
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtra(module, _EXTRAS.get(module)) from error


def _unknown_scheme(scheme: str) -> str:
    # Only the scheme is named: the rest of a URL may hold a password.
    near = difflib.get_close_matches(scheme.split("@")[0], _SCHEMES, n=1)
    if near:
        return f"unknown database URL scheme {scheme!r}, did you mean {near[0]!r}?"
    known = ", ".join(f"{name}://" for name in _SCHEMES)
    return f"this is no database URL that oncebox knows: it begins with one of {known}"


def adapter(name: str) -> Any:
    try:
        return import_module(f"oncebox.database.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingExtra(package, _EXTRAS[package]) from error
