"""One purge: delete old messages in small steps, after archiving them if there is an archive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from oncebox.errors import ArchiveError
from oncebox.operations.archive.format import Writer
from oncebox.operations.archive.location import Folder
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import read, run_transaction
from oncebox.storage.records import ArchivedMessage, ArchivedRef
from oncebox.storage.steps import Call, Steps

T = TypeVar("T")

PORTION = 32 << 20
"""About how many bytes of payloads are read at once."""

AT_ONCE = 500
"""Archived messages that are purged in one transaction."""


class Pass:
    """One purge, window by window."""

    def __init__(
        self,
        database: Database,
        store: Store,
        consumer: str,
        watermark: datetime | None,
        windows: Sequence[Any],
        held_back_by: Sequence[str],
    ) -> None:
        self.watermark = watermark
        self.held_back_by = held_back_by
        self.purged = 0
        self._database = database
        self._store = store
        self._consumer = consumer
        self._left = list(reversed(windows))

    def step(self) -> Steps[bool]:
        """Run one transaction. Returns False if nothing is left to purge."""
        watermark = self.watermark
        if watermark is None:
            return False
        if not self._left:
            yield from self._purge_counters(watermark)
            return False
        window = self._left.pop()
        self.purged += yield from run_transaction(
            self._database,
            lambda work: self._store.purge(work, self._consumer, watermark, window),
        )
        return True

    def give_up(self) -> None:
        """Remove files that were begun. There are none without an archive."""

    def _purge_counters(self, watermark: datetime) -> Steps[None]:
        purge = partial(self._store.purge_counters, consumer=self._consumer, watermark=watermark)
        yield from run_transaction(self._database, purge)


class ArchivingPass(Pass):
    """A purge that archives messages before it deletes them.

    It writes some windows into a file, reads the file back, then deletes the messages in it, and so
    on. After a crash at any point, each message is in the database or in a complete file.
    """

    def __init__(self, folder: Folder, *common: Any) -> None:
        super().__init__(*common)
        self._folder = folder
        self._writer: Writer | None = None
        self._written: list[ArchivedRef] = []
        self._archived: list[ArchivedRef] = []

    def step(self) -> Steps[bool]:
        """Run one step. Raises ArchiveError if the archive cannot be written."""
        if self._archived:
            yield from self._purge_some()
        elif self._writer is not None and (self._writer.is_full or not self._left):
            yield from self._finish(self._writer)
        elif self.watermark is not None and self._left:
            yield from self._write(self.watermark, self._left.pop())
        elif self.watermark is not None:
            yield from self._purge_counters(self.watermark)
            return False
        else:
            return False
        return True

    def give_up(self) -> None:
        """Remove the file that was begun."""
        if self._writer is not None:
            self._writer.give_up()
        self._writer = None

    def _write(self, watermark: datetime, window: Any) -> Steps[None]:
        """Archive a window, in portions that fit into memory."""
        common = {"consumer": self._consumer, "watermark": watermark, "window": window}
        count, size = yield from read(self._database, partial(self._store.old_size, **common))
        limit = count + 1 if size <= PORTION else max(1, count * PORTION // size)
        after = 0
        while True:
            read_rows = partial(self._store.old_messages, **common, after=after, limit=limit)
            found = yield from read(self._database, read_rows)
            if found:
                yield from self._add(found)
                after = found[-1].seq
            if len(found) < limit:
                return

    def _add(self, found: Sequence[ArchivedMessage]) -> Steps[None]:
        if self._writer is None:
            make = partial(Writer, self._folder, self._consumer, found[0].received_at)
            self._writer = yield from self._with_files(make)
        yield from self._with_files(partial(self._writer.add, found))
        self._written += [
            ArchivedRef(record.origin, record.id, len(record.runs), record.body is not None)
            for record in found
        ]

    def _finish(self, writer: Writer) -> Steps[None]:
        yield from self._with_files(writer.finish)
        self._archived, self._written, self._writer = self._written, [], None

    def _purge_some(self) -> Steps[None]:
        some, self._archived = self._archived[:AT_ONCE], self._archived[AT_ONCE:]
        purge = partial(self._store.purge_archived, consumer=self._consumer, messages=some)
        self.purged += yield from run_transaction(self._database, purge)

    def _with_files(self, work: Callable[[], T]) -> Steps[T]:
        """Run a function that writes files, off the event loop. If it fails, remove the file."""
        call: Call = partial(asyncio.to_thread, work) if self._database.is_async else work
        try:
            result: T = yield call
        except Exception as error:  # fsspec raises the errors of many libraries
            self.give_up()
            self._written, self._left = [], []
            raise ArchiveError(
                f"the archive cannot be written ({type(error).__name__}: {error}); no message of "
                "this file was purged"
            ) from error
        return result
