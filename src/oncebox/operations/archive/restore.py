"""Archives: list and check archived messages, and restore them into the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import ArchiveError, ConfigurationError, NotFound
from oncebox.model.filters import checked_time
from oncebox.operations.archive.format import (
    Manifest,
    check,
    manifest_names,
    manifests,
    read_manifest,
    reading,
    records,
    unfinished,
    within,
)
from oncebox.operations.archive.location import Folder, folder_of
from oncebox.operations.audit import audit_entry
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing.context import Context
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.steps import Call, Steps

AT_ONCE = 500
"""Messages restored in one transaction."""

A_DAY = timedelta(days=1)


class Checked(msgspec.Struct, frozen=True):
    """The result of checking an archive."""

    files: int
    messages: int
    damaged: Sequence[str]
    """What is wrong, one sentence per damaged file."""
    unfinished: Sequence[str]
    """Incomplete files, which are ignored: their writer crashed or is still writing."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    files: int
    messages: int
    """How many messages were restored."""
    known: int
    """How many messages existed already."""


class Archives:
    """Messages that were archived before they were purged: `inbox.archives`.

    `place` is the location of the archive, if it is not the one of the inbox's Retention. `since`
    and `until` refer to the time when messages were received. They select whole files.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def _find(
        self,
        is_async: bool,
        *,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Steps[list[Manifest]]:
        """Find the files of the archive, oldest first."""
        folder, times = self._folder(place), _times(since, until)
        find = partial(manifests, folder, self._context.consumer, **times)
        found: list[Manifest] = yield _blocking_call(find, is_async)
        return found

    find = sync_method(_find)
    afind = async_method(_find)

    def _check(
        self,
        is_async: bool,
        *,
        place: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Steps[Checked]:
        """Compare every file to its manifest. `progress` gets the number of files so far."""
        check = partial(_check_files, self._folder(place), self._context.consumer, progress)
        checked: Checked = yield _blocking_call(check, is_async)
        return checked

    check = sync_method(_check)
    acheck = async_method(_check)

    def _folder(self, place: str | None) -> Folder:
        archive = place or (self._context.retention and self._context.retention.archive)
        if not archive:
            raise ConfigurationError(
                f"inbox {self._context.consumer!r} has no archive: give it "
                'retention=Retention(days=7, archive="..."), or pass the location of an archive'
            )
        return folder_of(archive)

    def _restore(
        self,
        is_async: bool,
        *,
        why: str,
        by: str | None = None,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        keep: timedelta = A_DAY,
        progress: Callable[[int], None] | None = None,
    ) -> Steps[Restored]:
        """Restore archived messages. Messages that exist already stay as they are.

        Each file is checked before any of its messages is restored. For `keep`, nothing is purged.
        """
        audit = audit_entry("restore", by, why)
        folder = self._folder(place)
        times = _times(since, until)
        everything: list[Manifest] = yield _blocking_call(
            partial(manifests, folder, self._context.consumer), is_async
        )
        found = within(everything, **times)
        if not found:
            first, last = since or "the beginning", until or "now"
            raise NotFound(f"the archive has no file with messages from {first} to {last}")
        # New seqs begin after all archived ones, because more files may be restored later.
        last_seq = max(manifest.last_seq for manifest in everything)
        database = yield from self._context.open(is_async)
        store, consumer = self._context.store, self._context.consumer
        restored = read = 0
        # A message that changed after it was archived is also in a later file, which is right.
        for manifest in sorted(found, key=lambda manifest: manifest.made_at, reverse=True):
            yield _blocking_call(partial(check, folder, manifest), is_async)
            begin = partial(
                store.begin_restore,
                consumer=consumer,
                keep=keep.total_seconds(),
                last_seq=last_seq,
                file=manifest.file,
                audit=audit,
            )
            yield from run_transaction(database, begin)
            batches = records(folder, manifest, at_once=AT_ONCE)
            while batch := (yield _blocking_call(partial(next, batches, None), is_async)):
                restore = partial(store.restore, consumer=consumer, records=batch)
                restored += yield from run_transaction(database, restore)
                read += len(batch)
                if progress is not None:
                    progress(read)
        return Restored(len(found), restored, read - restored)

    restore = sync_method(_restore)
    arestore = async_method(_restore)


def _check_files(folder: Folder, consumer: str, progress: Callable[[int], None] | None) -> Checked:
    messages, damaged = 0, []
    names = manifest_names(folder, consumer)
    for number, name in enumerate(names, start=1):
        try:
            manifest = reading(partial(read_manifest, folder, name))
            messages += manifest.count
            reading(partial(check, folder, manifest))
        except ArchiveError as error:
            damaged.append(str(error))
        if progress is not None:
            progress(number)
    return Checked(len(names), messages, damaged, unfinished(folder, consumer))


def _blocking_call(function: Callable[[], Any], is_async: bool) -> Call:
    """The call of a function that reads files: in a thread if there is an event loop."""
    call = partial(reading, function)
    return partial(asyncio.to_thread, call) if is_async else call


def _times(since: datetime | None, until: datetime | None) -> dict[str, datetime | None]:
    return {"since": checked_time("since", since), "until": checked_time("until", until)}
