"""The database of an inbox: opened on first use, and its schema checked once."""

from __future__ import annotations

import asyncio
import heapq
import os
import threading
from collections.abc import Callable

from oncebox.errors import ConfigurationError, ForkedInbox
from oncebox.storage.contract import Store
from oncebox.storage.drivers.connect import Target
from oncebox.storage.drivers.contract import Database
from oncebox.storage.steps import Steps


class InboxDatabase:
    """Opens the database of an inbox on first use. Several threads may use it."""

    def __init__(
        self, target: Target, store: Store, check: Callable[[Database, Store], Steps[None]]
    ) -> None:
        self.target = target
        self.current: Database | None = None
        self._store = store
        self._check = check
        self._opened_by = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it was opened; None for a sync inbox."""
        self._ready = False
        self._lock = threading.Lock()

    def open(self, is_async: bool) -> Steps[Database]:
        """Return the open database. The first call connects and checks the schema."""
        database = self.current
        if database is not None and self._ready and self._opened_by == os.getpid():
            return database  # the usual case
        with self._lock:
            if self.current is None:
                self.current = self.target.make(is_async)
                self._opened_by = os.getpid()
                self._loop = asyncio.get_running_loop() if is_async else None
            elif self._opened_by != os.getpid():
                raise ForkedInbox
            database = self.current
        if not self._ready:
            yield from database.open()
            yield from self._check(database, self._store)
            with self._lock:
                self._ready = self.current is database
        return database

    def open_for_operation(self, is_async: bool) -> Steps[Database]:
        """As open(), for work without handlers.

        Raises ConfigurationError if a sync call meets an async database, or the reverse.
        """
        if self.target.is_async is not None and self.target.is_async is not is_async:
            if self.target.is_async:
                raise ConfigurationError(
                    "this inbox is async, but a sync method was called: await the async method, "
                    "whose name begins with a, such as aretry() instead of retry()"
                )
            raise ConfigurationError(
                "this inbox is sync, but an async method was called: call the sync method, such as "
                "retry() instead of aretry()"
            )
        return (yield from self.open(is_async))

    def make_for_migration(self, is_async: bool) -> Database:
        """A database that is not opened.

        Raises ConfigurationError if a sync call meets an async database, or the reverse.
        """
        if self.target.is_async and not is_async:
            raise ConfigurationError("this inbox is async: call await inbox.amigrate()")
        if is_async and self.target.is_async is False:
            raise ConfigurationError("this inbox is sync: call inbox.migrate()")
        return self.target.make(is_async)

    def close(self, is_async: bool) -> Steps[None]:
        """Close the connections that this process opened.

        Raises ConfigurationError if a sync call meets an async database, or the reverse.
        """
        with self._lock:
            database = self.current
            is_ours = self._opened_by == os.getpid()
            if database is not None and is_ours and database.is_async is not is_async:
                raise ConfigurationError(
                    "this inbox is async: call await inbox.aclose()"
                    if database.is_async
                    else "this inbox is sync: call inbox.close()"
                )
            self.current, self._ready = None, False
        if database is not None and is_ours:
            yield from self._close(database)

    def _close(self, database: Database) -> Steps[None]:
        """Close a database. Explain the error if that needs the event loop that opened it."""
        try:
            yield from database.close()
        except Exception as error:
            if self._loop is None or self._loop is asyncio.get_running_loop():
                raise
            raise ConfigurationError(
                "the inbox was opened in another event loop: close it in that one"
            ) from error


class WorkerSlots:
    """Numbers for units of work that run at the same time.

    Each unit updates the counter row of its number, so no unit waits for another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = [0]

    def take(self) -> int:
        """Take the lowest free number."""
        with self._lock:
            slot = heapq.heappop(self._free)
            if not self._free:
                self._free.append(slot + 1)
            return slot

    def release(self, slot: int) -> None:
        """Make a number free again."""
        with self._lock:
            heapq.heappush(self._free, slot)
