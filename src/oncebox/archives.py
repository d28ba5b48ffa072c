"""Archives: what was archived, whether it is sound, and back into the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from oncebox.archive import (
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
from oncebox.audit import checked_deed
from oncebox.database import committed
from oncebox.database.steps import arun, run
from oncebox.errors import ArchiveError, ConfigurationError, NotFound
from oncebox.folder import Folder, folder_of
from oncebox.home import Home
from oncebox.past import checked_time
from oncebox.store.contract import Call, Steps

T = TypeVar("T")

AT_ONCE = 500
"""Messages that are restored in one transaction."""

A_DAY = timedelta(days=1)


class Checked(msgspec.Struct, frozen=True):
    """Whether an archive is sound."""

    files: int
    messages: int
    damaged: Sequence[str]
    """What is wrong, a sentence each."""
    unfinished: Sequence[str]
    """Files without a manifest: who wrote them died, or is still at it. They count for nothing."""


class Restored(msgspec.Struct, frozen=True):
    """What a restoration came to."""

    files: int
    messages: int
    """How many came back."""
    known: int
    """How many were there already."""


class Archives:
    """What was archived before it was forgotten: `inbox.archives`.

    `place` is where the archive is, if that is not what the retention says. `since` and `until`
    are about the time when messages were received, and choose whole files.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def find(
        self,
        *,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Manifest]:
        """The files of the archive, the oldest first."""
        folder, times = self._folder(place), _times(since, until)
        return reading(partial(manifests, folder, self._home.name, **times))

    async def afind(
        self,
        *,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Manifest]:
        """See find()."""
        return await asyncio.to_thread(self.find, place=place, since=since, until=until)

    def check(
        self, *, place: str | None = None, progress: Callable[[int], None] | None = None
    ) -> Checked:
        """Read every file, and compare it to its manifest; `progress` is told how many."""
        folder, consumer, messages, damaged = self._folder(place), self._home.name, 0, []
        names = reading(partial(manifest_names, folder, consumer))
        for number, name in enumerate(names, start=1):
            try:
                manifest = reading(partial(read_manifest, folder, name))
                messages += manifest.count
                reading(partial(check, folder, manifest))
            except ArchiveError as error:
                damaged.append(str(error))
            if progress is not None:
                progress(number)
        begun = reading(partial(unfinished, folder, consumer))
        return Checked(len(names), messages, damaged, begun)

    async def acheck(
        self, *, place: str | None = None, progress: Callable[[int], None] | None = None
    ) -> Checked:
        """See check()."""
        return await asyncio.to_thread(self.check, place=place, progress=progress)

    def restore(
        self,
        *,
        why: str,
        by: str | None = None,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        keep: timedelta = A_DAY,
        progress: Callable[[int], None] | None = None,
    ) -> Restored:
        """Bring messages back; what is there stays as it is. For `keep`, nothing is forgotten.

        Each file is checked before anything of it is restored.
        """
        steps = self._restore(why, by, place, since, until, keep, progress, is_async=False)
        return run(steps)

    async def arestore(
        self,
        *,
        why: str,
        by: str | None = None,
        place: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        keep: timedelta = A_DAY,
        progress: Callable[[int], None] | None = None,
    ) -> Restored:
        """See restore()."""
        steps = self._restore(why, by, place, since, until, keep, progress, is_async=True)
        return await arun(steps)

    def _folder(self, place: str | None) -> Folder:
        archive = place or (self._home.retention and self._home.retention.archive)
        if not archive:
            raise ConfigurationError(
                f"inbox {self._home.name!r} has no archive: give it "
                'retention=Retention(days=7, archive="..."), or say where the archive is'
            )
        return folder_of(archive)

    def _restore(
        self,
        why: str,
        by: str | None,
        place: str | None,
        since: datetime | None,
        until: datetime | None,
        keep: timedelta,
        progress: Callable[[int], None] | None,
        *,
        is_async: bool,
    ) -> Steps[Restored]:
        deed = checked_deed("restore", by, why)
        folder = self._folder(place)
        times = _times(since, until)
        everything: list[Manifest] = yield _off(
            partial(manifests, folder, self._home.name), is_async
        )
        found = within(everything, **times)
        if not found:
            raise NotFound("there is no such file in the archive")
        # Numbers go on behind all that is archived: more of it may be restored later.
        last_seq = max(manifest.last_seq for manifest in everything)
        database = yield from self._home._database_for(is_async)
        store, consumer = self._home._store, self._home.name
        restored = read = 0
        # What changed after it was archived is in a later file as well, and that one is right.
        for manifest in sorted(found, key=lambda manifest: manifest.made_at, reverse=True):
            yield _off(partial(check, folder, manifest), is_async)
            begin = partial(
                store.begin_restore,
                consumer=consumer,
                keep=keep.total_seconds(),
                last_seq=last_seq,
                file=manifest.file,
                deed=deed,
            )
            yield from committed(database, begin)
            batches = records(folder, manifest, at_once=AT_ONCE)
            while batch := (yield _off(partial(next, batches, None), is_async)):
                bring = partial(store.restore, consumer=consumer, records=batch)
                restored += yield from committed(database, bring)
                read += len(batch)
                if progress is not None:
                    progress(read)
        return Restored(len(found), restored, read - restored)


def _off(function: Callable[[], Any], is_async: bool) -> Call:
    """The call of something that reads files: not on an event loop."""
    call = partial(reading, function)
    return partial(asyncio.to_thread, call) if is_async else call


def _times(since: datetime | None, until: datetime | None) -> dict[str, datetime | None]:
    return {"since": checked_time("since", since), "until": checked_time("until", until)}
