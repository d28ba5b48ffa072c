"""PostgreSQL and SQLite with SQLAlchemy 2, sync and async: the engine."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oncebox.errors import ConfigurationError
from oncebox.storage.drivers import error_codes, pooler
from oncebox.storage.drivers.psycopg import libpq
from oncebox.storage.drivers.sqlalchemy import asyncpg_settings
from oncebox.storage.drivers.sqlalchemy.work import SqlAlchemyWork
from oncebox.storage.steps import Steps

__all__ = ["SqlAlchemyDatabase", "SqlAlchemyWork", "dialect_of"]

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}
_ON_LIBPQ = ("postgresql+psycopg", "postgresql+psycopg2")


def dialect_of(bind: Any) -> str:
    """The dialect of an engine or a connection. Raises ConfigurationError if it has no store."""
    name = bind.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"oncebox supports PostgreSQL and SQLite, not {name}")
    return _DIALECTS[name]


class SqlAlchemyDatabase:
    """An Engine or AsyncEngine.

    With `flush_once`, the changes of the ORM are written once per batch instead of after every
    message, and queries do not flush. That is faster, but a query does not see what earlier
    handlers of the batch changed, except through objects of the session.
    """

    def __init__(
        self, engine: Any, *, flush_once: bool = False, owned: bool = False, **session: Any
    ) -> None:
        self.engine = engine
        self.dialect = dialect_of(engine)
        self.reads_without_transaction = self.dialect == "sqlite"
        self.is_async = isinstance(engine, AsyncEngine)
        self.sleep = asyncio.sleep if self.is_async else time.sleep
        self._flush_once = flush_once
        self._session_options = session
        self._owned = owned
        self.abandoned: list[Any] = []
        self._may_prepare: bool | None = True if self.dialect == "sqlite" else None
        """True if statements may be prepared; None before the first connection."""
        self._starts_unprepared = owned and engine.dialect.driver == "asyncpg"
        if self._starts_unprepared:
            event.listen(engine.sync_engine, "do_connect", self._configure)

    @classmethod
    def from_url(cls, url: str, *, is_async: bool) -> SqlAlchemyDatabase:
        """A new engine for a URL."""
        create = create_async_engine if is_async else sqlalchemy.create_engine
        try:
            return cls(create(url, connect_args=_connect_args(url)), owned=True)
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.InvalidRequestError) as error:
            raise ConfigurationError(f"SQLAlchemy refuses the database URL: {error}") from error

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        if self._owned:
            yield self.engine.dispose

    def work(self) -> SqlAlchemyWork:
        return SqlAlchemyWork(flush_once=self._flush_once, session_options=self._session_options)

    def acquire(self, work: SqlAlchemyWork) -> Steps[None]:
        yield from self._attach(work)
        if self._may_prepare is None:
            yield from self._detect_pooler(work)
        if not self._may_prepare:
            work.stop_preparing()

    def _attach(self, work: SqlAlchemyWork) -> Steps[None]:
        try:
            yield partial(work.aattach if self.is_async else work.attach, self.engine.connect)
        except sqlalchemy.exc.DBAPIError as error:
            # asyncpg prepares statements even while it connects.
            if error_codes.is_prepared_statement_error(error):
                raise asyncpg_settings.prepared_statements_refused() from error
            raise

    def _detect_pooler(self, work: SqlAlchemyWork) -> Steps[None]:
        """Find out whether connections may prepare statements; reconnect if this one differs."""
        probe = SqlAlchemyWork()
        probe.attach(lambda: work.connection)
        found = yield from pooler.may_prepare(
            probe, probe.driver_connection(), try_it=not self._starts_unprepared
        )
        if found is False and self.engine.dialect.driver == "asyncpg" and not self._owned:
            raise asyncpg_settings.prepared_statements_refused()
        self._may_prepare = found
        if found is self._starts_unprepared:
            yield work.connection.invalidate
            yield from self.release(work)
            yield from self._attach(work)

    def _configure(self, _: Any, __: Any, ___: Any, parameters: dict[str, Any]) -> None:
        """Connect without prepared statements until the server is known to support them."""
        if not self._may_prepare:
            parameters.update(
                asyncpg_settings.UNPREPARED, connection_class=asyncpg_settings.connection_class()
            )

    def release(self, work: SqlAlchemyWork) -> Steps[None]:
        work.unwatch()
        work.allow_end()
        yield work.connection.close  # does nothing if it is closed already
        work.connection = None

    def recover(self) -> Steps[None]:
        """Nothing to do: SQLAlchemy discards its old connections when one of them breaks."""
        yield from ()

    def renew(self, work: SqlAlchemyWork) -> Steps[None]:
        yield work.connection.invalidate
        yield self.engine.dispose

    def listen(self, channel: str) -> None:
        """Not supported: workers poll."""


def _connect_args(url: str) -> dict[str, int]:
    """Timeouts for the connections that oncebox opens, if the driver has them."""
    given = sqlalchemy.make_url(url)
    return libpq.with_timeouts(given.query) if given.drivername in _ON_LIBPQ else {}
