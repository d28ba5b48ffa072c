"""PostgreSQL and SQLite with Django: the connection of a database alias. Sync only."""

from __future__ import annotations

import threading
import time
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from oncebox.errors import ConfigurationError
from oncebox.storage.drivers import pooler
from oncebox.storage.drivers.django.work import DjangoWork
from oncebox.storage.steps import Steps

__all__ = ["DIALECTS", "DjangoDatabase", "DjangoWork"]

DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}

CHECK_TIMEOUT = 5.0
"""Seconds that Django's check of a connection may take."""


class DjangoDatabase:
    """A database alias of Django's settings."""

    is_async = False
    schema_remedy = DjangoWork.schema_remedy
    sleep = staticmethod(time.sleep)

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias
        try:
            vendor = connections[alias].vendor
        except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
            raise ConfigurationError(f"Django database {alias!r}: {error}") from error
        if vendor not in DIALECTS:
            raise ConfigurationError(f"oncebox supports PostgreSQL and SQLite, not {vendor}")
        self.dialect = DIALECTS[vendor]
        self.reads_without_transaction = self.dialect == "sqlite"
        self._here = threading.local()
        self._may_prepare: bool | None = None

    def open(self) -> Steps[None]:
        yield from ()

    def close(self) -> Steps[None]:
        """Nothing to do: Django closes its connections."""
        yield from ()

    @property
    def abandoned(self) -> list[Any]:
        """The abandoned works of this thread: Django has one connection per thread."""
        if not hasattr(self._here, "abandoned"):
            self._here.abandoned = []
        return self._here.abandoned  # type: ignore[no-any-return]

    def work(self) -> DjangoWork:
        return DjangoWork()

    def acquire(self, work: DjangoWork) -> Steps[None]:
        connection = connections[self.alias]
        work.attach(connection)
        if not connection.in_atomic_block:  # as Django does around a request
            work.watch(connection.connection, CHECK_TIMEOUT)
            yield connection.close_if_unusable_or_obsolete
            if self._may_prepare is None:
                yield from self._detect_pooler(connection)

    def _detect_pooler(self, connection: Any) -> Steps[None]:
        """Raise ConfigurationError if Django prepares statements and the pooler forbids it."""
        connection.ensure_connection()
        probe = DjangoWork(connection)
        self._may_prepare = yield from pooler.may_prepare(probe, connection.connection)
        if self._may_prepare is False:
            self._may_prepare = None
            yield connection.close
            setting = "remove prepare_threshold from OPTIONS in DATABASES"
            raise ConfigurationError(pooler.REMEDY.format(setting=setting))

    def release(self, work: DjangoWork) -> Steps[None]:
        try:
            if work.is_unfinished:
                yield work.reset
            if not work.connection.in_atomic_block:
                yield work.connection.close_if_unusable_or_obsolete
        finally:
            work.unwatch()
        work.connection = None

    def recover(self) -> Steps[None]:
        yield from ()

    def renew(self, work: DjangoWork) -> Steps[None]:
        # Close the driver's connection: Django's close() would return it to a pool.
        if work.connection.connection is not None:
            yield work.connection.connection.close

    def listen(self, channel: str) -> None:
        """Not supported: workers poll."""
