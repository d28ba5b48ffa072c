"""Forgetting: old messages go, a little at a time, into an archive first if there is one."""

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
"""Bytes of payloads that are read at once, about."""

AT_ONCE = 500
"""Messages that are forgotten in one transaction, where they are known by name."""


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
        """One transaction; says whether there was anything to do."""
        watermark = self.watermark
        if watermark is None:
            return False
        if not self._left:
            yield from self._forget_counters(watermark)
            return False
        window = self._left.pop()
        self.purged += yield from run_transaction(
            self._database,
            lambda work: self._store.purge(work, self._consumer, watermark, window),
        )
        return True

    def give_up(self) -> None:
        """Leave nothing half done behind."""

    def _forget_counters(self, watermark: datetime) -> Steps[None]:
        forget = partial(self._store.purge_counters, consumer=self._consumer, watermark=watermark)
        yield from run_transaction(self._database, forget)


class ArchivingPass(Pass):
    """One purge that writes everything into an archive before it is forgotten.

    Some windows are written into a file, the file is read back, what is in it is forgotten,
    and so on. Whatever dies in between: everything is in the database, or in a finished file.
    """

    def __init__(self, folder: Folder, *common: Any) -> None:
        super().__init__(*common)
        self._folder = folder
        self._writer: Writer | None = None
        self._written: list[ArchivedRef] = []
        self._archived: list[ArchivedRef] = []

    def step(self) -> Steps[bool]:
        """One step; raises ArchiveError where the archive cannot be written."""
        if self._archived:
            yield from self._forget_some()
        elif self._writer is not None and (self._writer.is_full or not self._left):
            yield from self._finish(self._writer)
        elif self.watermark is not None and self._left:
            yield from self._write(self.watermark, self._left.pop())
        elif self.watermark is not None:
            yield from self._forget_counters(self.watermark)
            return False
        else:
            return False
        return True

    def give_up(self) -> None:
        """Leave no file behind that will never be finished."""
        if self._writer is not None:
            self._writer.give_up()
        self._writer = None

    def _write(self, watermark: datetime, window: Any) -> Steps[None]:
        """Write a window, as much of it at a time as there is room for in memory."""
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
            self._writer = yield from self._safely(make)
        yield from self._safely(partial(self._writer.add, found))
        self._written += [
            ArchivedRef(record.origin, record.id, len(record.runs), record.body is not None)
            for record in found
        ]

    def _finish(self, writer: Writer) -> Steps[None]:
        yield from self._safely(writer.finish)
        self._archived, self._written, self._writer = self._written, [], None

    def _forget_some(self) -> Steps[None]:
        some, self._archived = self._archived[:AT_ONCE], self._archived[AT_ONCE:]
        forget = partial(self._store.purge_archived, consumer=self._consumer, messages=some)
        self.purged += yield from run_transaction(self._database, forget)

    def _safely(self, work: Callable[[], T]) -> Steps[T]:
        """Do something with files, off the event loop; what fails leaves nothing behind."""
        call: Call = partial(asyncio.to_thread, work) if self._database.is_async else work
        try:
            answer: T = yield call
        except Exception as error:  # file systems of fsspec raise what their libraries raise
            self.give_up()
            self._written, self._left = [], []
            raise ArchiveError(
                f"the archive cannot be written ({type(error).__name__}: {error}); nothing of it "
                "was forgotten"
            ) from error
        return answer
