"""PostgreSQL with psycopg 3, sync and async: the connection pool."""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg

from oncebox.errors import ConfigurationError, MissingExtra
from oncebox.storage.drivers import pooler
from oncebox.storage.drivers.psycopg import libpq
from oncebox.storage.drivers.psycopg.listening import Listener
from oncebox.storage.drivers.psycopg.work import PsycopgWork
from oncebox.storage.steps import Steps

try:
    import psycopg_pool
except ImportError as error:  # pragma: no cover - psycopg without its pool
    raise MissingExtra("psycopg_pool", "postgres") from error

__all__ = ["PsycopgDatabase", "PsycopgWork"]


class PsycopgDatabase:
    """A pool of psycopg connections: the user's, or one that oncebox makes for a URL."""

    dialect = "postgres"
    reads_without_transaction = False

    def __init__(self, pool: Any, *, pipeline: bool = True, owned: bool = False) -> None:
        if getattr(pool, "close_returns", False):
            raise ConfigurationError(
                "the pool has close_returns=True: if a handler closes its connection, another "
                "transaction would get it. Create the pool without close_returns"
            )
        self.pool = pool
        self.is_async = isinstance(pool, psycopg_pool.AsyncConnectionPool)
        self.sleep = asyncio.sleep if self.is_async else time.sleep
        self._pipeline = pipeline and psycopg.Pipeline.is_supported()
        self._owned = owned
        self._is_opening = False
        self.abandoned: list[Any] = []
        self._may_prepare: bool | None = None
        """True if statements may be prepared; None before the first connection."""
        self._exposed: weakref.WeakSet[Any] = weakref.WeakSet()
        """The connections that handlers had, and may still use."""

    @classmethod
    def from_url(cls, url: str, *, is_async: bool, pipeline: bool = True) -> PsycopgDatabase:
        """A new pool for a URL."""
        kind = psycopg_pool.AsyncConnectionPool if is_async else psycopg_pool.ConnectionPool
        pool = kind(
            url,
            kwargs=libpq.with_timeouts(psycopg.conninfo.conninfo_to_dict(url)),
            min_size=1,
            max_size=16,
            timeout=10,
            open=False,
            name="oncebox",
        )
        return cls(pool, pipeline=pipeline, owned=True)

    @staticmethod
    def check_url(url: str) -> None:
        """Raise ConfigurationError for a URL that libpq cannot parse."""
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigurationError(f"the database URL cannot be parsed: {error}") from error

    def open(self) -> Steps[None]:
        """Nothing to do: the pool is opened after the first connection, see _attach()."""
        yield from ()

    def close(self) -> Steps[None]:
        if self._owned:
            yield self.pool.close

    def work(self) -> PsycopgWork:
        return PsycopgWork(pipeline=self._pipeline)

    def acquire(self, work: PsycopgWork) -> Steps[None]:
        yield from self._attach(work)
        if self._may_prepare is None:
            yield from self._detect_pooler(work)
        if not self._may_prepare:
            pooler.stop_preparing(work.connection)
        work.is_exposed = work.connection in self._exposed

    def _attach(self, work: PsycopgWork) -> Steps[None]:
        attach = work.aattach if self.is_async else work.attach
        if self._owned and self.pool.closed:
            yield from self._open_pool()
        try:
            yield partial(attach, self.pool.getconn)
        except psycopg_pool.PoolTimeout:
            yield from self._connect_directly()
            raise

    def _open_pool(self) -> Steps[None]:
        """Open the pool; the first caller connects without it before.

        The pool would try for ten seconds, log each try, and hide the error.
        """
        if not self._is_opening:
            self._is_opening = True
            try:
                yield from self._connect_directly()
            finally:
                self._is_opening = False
        yield self.pool.open

    def _detect_pooler(self, work: PsycopgWork) -> Steps[None]:
        """Find out whether connections may prepare statements; replace this one if not."""
        probe = PsycopgWork()
        probe.attach(lambda: work.connection)
        self._may_prepare = yield from pooler.may_prepare(probe, work.connection)
        if self._may_prepare is False:
            yield work.connection.close
            yield from self.release(work)
            yield from self._attach(work)

    def _connect_directly(self) -> Steps[None]:
        """Connect without the pool: this raises the error that the pool hides."""
        if self._owned:
            kind: Any = psycopg.AsyncConnection if self.is_async else psycopg.Connection
            connection = yield partial(kind.connect, self.pool.conninfo, **self.pool.kwargs)
            yield connection.close

    def release(self, work: PsycopgWork) -> Steps[None]:
        work.unwatch()
        if work.is_exposed:
            self._exposed.add(work.connection)
        yield partial(self._aput if self.is_async else self._put, work)

    # An interrupted putconn() is called again at once: later, another work may have the connection.
    # The pool refuses a connection that was returned already.

    def _put(self, work: PsycopgWork) -> None:
        connection = work.connection
        try:
            work.connection = None
            self.pool.putconn(connection)
        except BaseException:
            work.connection = None
            with suppress(ValueError):
                self.pool.putconn(connection)
            raise

    async def _aput(self, work: PsycopgWork) -> None:
        connection = work.connection
        try:
            work.connection = None
            await self.pool.putconn(connection)
        except BaseException:
            work.connection = None
            with suppress(ValueError):
                await self.pool.putconn(connection)
            raise

    def recover(self) -> Steps[None]:
        # Not check(), where the pool has drain(): check() would also wait for replies on
        # half-open connections.
        yield getattr(self.pool, "drain", self.pool.check)

    def renew(self, work: PsycopgWork) -> Steps[None]:
        yield work.connection.close
        yield from self.recover()

    def listen(self, channel: str) -> Listener | None:
        if callable(self.pool.conninfo) or callable(self.pool.kwargs):
            return None  # only the pool may call them, once per connection
        options = {
            **(self.pool.kwargs or {}),
            "autocommit": True,
            "prepare_threshold": None,  # a pooler may not support it
            # Without this, an idle connection notices a lost server after a quarter of an hour.
            "tcp_user_timeout": 5000,
        }
        connect = partial(self.pool.connection_class.connect, self.pool.conninfo, **options)
        return Listener(connect, channel, self.sleep)
