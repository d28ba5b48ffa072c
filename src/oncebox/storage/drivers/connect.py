"""Turn the `database` of an inbox, or the connection of a claim(), into a driver adapter.

Drivers are imported on first use: oncebox works without any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from oncebox.errors import ConfigurationError, MissingExtra
from oncebox.model.suggestions import suggestion
from oncebox.storage.drivers.contract import Database
from oncebox.storage.steps import Steps

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
"""The dialect of a URL scheme, and whether it is async; None: sync or async."""

_EXTRAS = {
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "sqlalchemy": "sqlalchemy",
    "greenlet": "sqlalchemy",
    "aiosqlite": "aiosqlite",
    "django": "django",
}
"""The extra of oncebox that installs a package."""


class Target(msgspec.Struct, frozen=True):
    """A database that is configured but not opened yet."""

    dialect: str
    is_async: bool | None
    """None: sync or async, as the handlers need."""
    make: Callable[[bool], Database]
    """Makes the adapter. The argument is True for an async adapter."""


def target(database: Any, *, pipeline: bool) -> Target:
    """The database for a URL, pool, engine or adapter. Raises ConfigurationError."""
    if isinstance(database, str):
        return _from_url(database, pipeline)
    found = _from_object(database, pipeline)

    def opened(is_async: bool) -> Database:
        _check_is_open(database)
        return found

    return Target(found.dialect, found.is_async, opened)


def borrow(connection: Any, *, is_async: bool) -> Steps[tuple[str, Any]]:
    """The dialect of the caller's connection, and an adapter through which a store uses it."""
    driver = driver_of(connection.__class__)
    if driver is not None and driver.is_async is is_async:
        return driver.dialect, driver.wrap(connection)
    library = _library_of(connection.__class__)
    _check_is_connection(connection, library, is_async)
    if library == "sqlalchemy":
        if hasattr(connection, "get_bind"):  # a Session or an AsyncSession
            connection = yield connection.connection
        return _borrow_sqlalchemy(connection)
    found = adapter("django")
    return found.DIALECTS[connection.vendor], found.DjangoWork.borrowed(connection)


class Driver(NamedTuple):
    """How a store uses the connections of a driver's class."""

    dialect: str
    is_async: bool
    wrap: Callable[[Any], Any]


@cache
def driver_of(kind: type) -> Driver | None:
    """The driver of a connection class; None for SQLAlchemy, Django and other objects."""
    library = _library_of(kind)
    if not hasattr(kind, "commit"):
        return None
    if library == "psycopg":
        wrap = adapter("psycopg", "borrowed").BorrowedPsycopg
        return Driver("postgres", kind.__name__.startswith("Async"), wrap)
    if library in ("sqlite3", "aiosqlite"):
        wrap = adapter("sqlite", "borrowed").BorrowedSqlite
        return Driver("sqlite", library == "aiosqlite", wrap)
    return None


def _check_is_connection(connection: Any, library: str, is_async: bool) -> None:
    """Raise ConfigurationError for an object that claim() cannot use."""
    wanted = {"sqlalchemy": "in_transaction", "django": "in_atomic_block"}.get(library, "commit")
    if not library or not hasattr(connection, wanted):
        raise ConfigurationError(
            "claim(), claim_many() and failed() take a connection of sqlite3, aiosqlite, psycopg, "
            f"SQLAlchemy or Django, not {type(connection).__qualname__}"
        )
    awaits = library == "aiosqlite" or type(connection).__name__.startswith("Async")
    if awaits is not is_async:
        call = "await inbox.aclaim() or its siblings" if awaits else "inbox.claim() or its siblings"
        name = type(connection).__qualname__
        raise ConfigurationError(f"{name} is {'async' if awaits else 'sync'}: use {call}")


def _borrow_sqlalchemy(connection: Any) -> tuple[str, Any]:
    found = adapter("sqlalchemy")
    return found.dialect_of(connection), found.SqlAlchemyWork.borrowed(connection)


@cache
def _library_of(kind: type) -> str:
    """The library that defines a class, or one of its base classes."""
    libraries = ("sqlalchemy", "psycopg_pool", "psycopg", "django", "aiosqlite", "sqlite3")
    roots = [cls.__module__.split(".")[0] for cls in kind.__mro__]
    return next((root for root in roots if root in libraries), "")


def _from_object(database: Any, pipeline: bool) -> Database:
    library = _library_of(database.__class__)
    if hasattr(database, "acquire") and hasattr(database, "dialect") and not library:
        return database  # type: ignore[no-any-return]
    if library == "psycopg_pool":
        return adapter("psycopg").PsycopgDatabase(database, pipeline=pipeline)  # type: ignore[no-any-return]
    if library == "sqlalchemy" and hasattr(database, "connect") and hasattr(database, "dispose"):
        return adapter("sqlalchemy").SqlAlchemyDatabase(database)  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"the database of an inbox is a URL, a psycopg pool, a SQLAlchemy Engine or AsyncEngine, "
        f"or Django(alias), not {type(database).__qualname__}"
    )


def _check_is_open(database: Any) -> None:
    """Raise ConfigurationError for a psycopg pool that its owner has not opened."""
    if _library_of(database.__class__) == "psycopg_pool" and database.closed:
        call = "await pool.open()" if hasattr(database, "__aenter__") else "pool.open()"
        raise ConfigurationError(f"the psycopg pool is not open: call {call} first")


def _from_url(url: str, pipeline: bool) -> Target:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError(_unknown_scheme(url))
    dialect, is_async = _SCHEMES[scheme]
    if "+" in scheme:
        _check_driver(scheme.partition("+")[2])
        found = adapter("sqlalchemy").SqlAlchemyDatabase
        make = lambda is_async: found.from_url(url, is_async=is_async)  # noqa: E731
    elif dialect == "sqlite":
        found = adapter("sqlite").SqliteDatabase
        found.from_url(url, is_async=False)  # raises now if the URL names no file
        make = lambda is_async: found.from_url(url, is_async=is_async)  # noqa: E731
    else:
        found = adapter("psycopg").PsycopgDatabase
        found.check_url(url)
        make = lambda is_async: found.from_url(url, is_async=is_async, pipeline=pipeline)  # noqa: E731
    return Target(dialect, is_async, make)


def _check_driver(name: str) -> None:
    module = {"pysqlite": "sqlite3"}.get(name, name)
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtra(module, _EXTRAS.get(module)) from error


def _unknown_scheme(url: str) -> str:
    scheme = re.split("[:/@]", url)[0]  # the rest of a URL may contain a password
    hint = suggestion(scheme, _SCHEMES)
    meant = f", {hint}" if hint.startswith("did you mean") else "."
    return (
        f"unknown database URL scheme {scheme!r}{meant} oncebox supports SQLite "
        "(sqlite:///inbox.db) and PostgreSQL (postgresql://host/name), also with a driver of "
        "SQLAlchemy (postgresql+asyncpg://host/name)"
    )


@cache
def adapter(name: str, module: str = "database") -> Any:
    """The module of a driver adapter. Raises MissingExtra if its library is not installed."""
    try:
        return import_module(f"oncebox.storage.drivers.{name}.{module}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingExtra(package, _EXTRAS[package]) from error
