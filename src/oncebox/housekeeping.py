"""Housekeeping: messages are forgotten when their time is over, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar, Unpack

import msgspec

from oncebox import reports
from oncebox.audit import checked_deed
from oncebox.database import committed, is_crowded, seen
from oncebox.database.contract import Database
from oncebox.database.steps import arun, run
from oncebox.errors import ArchiveError, ConfigurationError, DatabaseUnavailable
from oncebox.folder import folder_of
from oncebox.forgetting import ArchivingPass, Pass
from oncebox.home import Home
from oncebox.past import Which, checked_past
from oncebox.retention import Horizon, horizon
from oncebox.store.contract import Steps
from oncebox.store.records import Past

T = TypeVar("T")

EVERY = 600.0
"""Seconds between two turns, whoever takes them."""

AT_ONCE = 500
"""Messages that are erased in one transaction."""

ASK_EVERY = 60.0
"""Seconds after which a process asks again whether it is its turn."""

SHARE = 0.2
"""How much of its time a process that has other work gives to the house."""

PURGE_SHARE = 0.5
"""How much of its time a purge works that was asked for: others need the database meanwhile."""


class Purged(msgspec.Struct, frozen=True):
    """What a purge came to."""

    mark: datetime | None
    """Messages that were minted and received before it are forgotten."""
    forgotten: int
    held_by: Sequence[str] = ()
    """Why the mark is not where the retention would have it."""


class Erased(msgspec.Struct, frozen=True):
    """What an erasure came to."""

    done: int
    left: int
    """How many were not erased: they are unfinished, quarantined or in a replay, which is to end
    first; or their keys were busy."""


class Housekeeping:
    """Forgets what is old: `inbox.housekeeping`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def horizon(self) -> tuple[Horizon, int]:
        """How far the mark may go now, and how many messages are behind it."""
        return run(self._preview(is_async=False))

    async def ahorizon(self) -> tuple[Horizon, int]:
        """See horizon()."""
        return await arun(self._preview(is_async=True))

    def purge(
        self,
        *,
        why: str = "it was time",
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Purged:
        """Forget what is older than the retention, and finished; `progress` is told how many."""
        return run(self._purge(why, by, progress, is_async=False))

    async def apurge(
        self,
        *,
        why: str = "it was time",
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Purged:
        """See purge()."""
        return await arun(self._purge(why, by, progress, is_async=True))

    def erase(
        self,
        *,
        why: str,
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
        **which: Unpack[Which],
    ) -> Erased:
        """Erase payload, headers and error texts of finished messages; their ids stay.

        Messages are chosen as for a replay, in whatever state. What is in an archive stays there.
        """
        return run(self._erase(why, by, progress, which, is_async=False))

    async def aerase(
        self,
        *,
        why: str,
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
        **which: Unpack[Which],
    ) -> Erased:
        """See erase()."""
        return await arun(self._erase(why, by, progress, which, is_async=True))

    def count_erasable(self, **which: Unpack[Which]) -> int:
        """How many messages that match have anything to erase."""
        return len(run(self._find_erasable(checked_past(which), is_async=False)))

    async def acount_erasable(self, **which: Unpack[Which]) -> int:
        """See count_erasable()."""
        return len(await arun(self._find_erasable(checked_past(which), is_async=True)))

    # -- the steps --------------------------------------------------------------------------------

    def _preview(self, *, is_async: bool) -> Steps[tuple[Horizon, int]]:
        database = yield from self._home._database_for(is_async)
        found = yield from self._horizon(database)
        mark = found.mark
        if mark is None:
            return found, 0
        count = yield from seen(
            database,
            lambda work: self._home._store.count_old(work, self._home.name, mark),
        )
        return found, count

    def _purge(
        self,
        why: str,
        by: str | None,
        progress: Callable[[int], None] | None,
        *,
        is_async: bool,
    ) -> Steps[Purged]:
        deed = checked_deed("purge", by, why)
        database = yield from self._home._database_for(is_async)
        passing = yield from self.begin(database)
        if passing.mark is not None:
            about = f"what came before {passing.mark:%Y-%m-%d %H:%M:%S}"
            note = partial(self._home._store.note, consumer=self._home.name, deed=deed, about=about)
            yield from committed(database, note)
        try:
            began = time.monotonic()
            while (yield from passing.step()):
                rest = _rest(began, PURGE_SHARE)
                if progress is not None:
                    progress(passing.forgotten)
                yield partial(database.sleep, rest)
                began = time.monotonic()
        finally:
            passing.give_up()
        return Purged(passing.mark, passing.forgotten, passing.held_by)

    def _find_erasable(
        self, past: Past, *, is_async: bool
    ) -> Steps[list[tuple[str | None, str, str]]]:
        if past == Past():
            raise ConfigurationError("say which messages are meant: key, ids, ...")
        database = yield from self._home._database_for(is_async)
        find = partial(self._home._store.find_past, consumer=self._home.name, past=past)
        found = yield from seen(database, find)
        return [(key, origin, id) for key, origin, id, is_erasable in found if is_erasable]

    def _erase(
        self,
        why: str,
        by: str | None,
        progress: Callable[[int], None] | None,
        which: Which,
        *,
        is_async: bool,
    ) -> Steps[Erased]:
        deed = checked_deed("erase", by, why)
        past = checked_past(which)
        found = yield from self._find_erasable(past, is_async=is_async)
        database = yield from self._home._database_for(is_async)
        store, consumer = self._home._store, self._home.name
        erased = 0
        for first in range(0, len(found), AT_ONCE):
            some = found[first : first + AT_ONCE]
            erase = partial(store.erase, consumer=consumer, messages=some, deed=deed)
            try:
                erased += yield from committed(database, erase)
            except DatabaseUnavailable as error:
                if not is_crowded(error):
                    raise
                continue  # somebody has a key of theirs for long: they are left
            if progress is not None:
                progress(erased)
        count = partial(store.count_strangers, consumer=consumer, past=past)
        strangers = yield from seen(database, count)
        return Erased(erased, len(found) - erased + strangers)

    def begin(self, database: Database) -> Steps[Pass]:
        """Set the mark, and find out what there is to do."""
        found = yield from self._horizon(database)
        store, consumer = self._home._store, self._home.name
        wanted, retention = found.mark, self._home.retention
        if wanted is None:
            return Pass(database, store, consumer, None, [], found.held_by)
        # The mark comes first: whatever is forgotten after it is known to be old.
        mark = yield from committed(database, lambda work: store.set_mark(work, consumer, wanted))
        windows = yield from seen(database, lambda work: store.old_windows(work, consumer, mark))
        if retention is None or retention.archive is None:
            return Pass(database, store, consumer, mark, windows, found.held_by)
        folder = folder_of(retention.archive)
        return ArchivingPass(folder, database, store, consumer, mark, windows, found.held_by)

    def _horizon(self, database: Database) -> Steps[Horizon]:
        if self._home.retention is None:
            raise ConfigurationError(
                f"inbox {self._home.name!r} keeps everything: give it retention=Retention(days=7)"
            )
        store, consumer = self._home._store, self._home.name
        held = yield from seen(database, lambda work: store.hold_until(work, consumer))
        if held is not None:
            why = f"messages were restored, and are kept until {held:%Y-%m-%d %H:%M}"
            return Horizon(None, [why])
        sight = yield from seen(database, lambda work: store.sight(work, consumer))
        return horizon(sight, self._home.retention)


class Housekeeper:
    """Keeps house beside other work: one step at a time, if it is this process's turn."""

    def __init__(self, housekeeping: Housekeeping, home: Home, database: Database) -> None:
        self._housekeeping = housekeeping
        self._home = home
        self._database = database
        self._ask_at = time.monotonic() + ASK_EVERY / 10
        self._rested_at = 0.0
        self._pass: Pass | None = None

    @property
    def is_rested(self) -> bool:
        """Whether other work has had its share of time since the last step."""
        return time.monotonic() >= self._rested_at

    def step(self) -> Steps[bool]:
        """Do a little, if there is anything to do; says whether there is more."""
        began = time.monotonic()
        is_more = yield from self._step()
        self._rested_at = time.monotonic() + _rest(began, SHARE)
        return is_more

    def _step(self) -> Steps[bool]:
        if self._home.retention is None:
            return False
        if self._pass is None:
            return (yield from self._begin())
        passing, self._pass = self._pass, None
        if time.monotonic() >= self._ask_at:
            yield from self._take_turn(every=0)  # we are still at it
        try:
            if (yield from passing.step()):
                self._pass = passing
                return True
            self._tell(passing)
        except ArchiveError as error:
            reports.logger.error("%s: %s; it is tried again later", self._home.name, error)
        return False

    def _begin(self) -> Steps[bool]:
        """Look whether it is our turn, once in a while."""
        if time.monotonic() >= self._ask_at and (yield from self._take_turn(every=EVERY)):
            self._pass = yield from self._housekeeping.begin(self._database)
        return self._pass is not None

    def _take_turn(self, *, every: float) -> Steps[bool]:
        """Whether it is our turn, unless somebody had it within so many seconds."""
        self._ask_at = time.monotonic() + ASK_EVERY
        take = partial(self._home._store.take_turn, consumer=self._home.name, every=every)
        return (yield from committed(self._database, take))

    def leave(self) -> None:
        """Whatever was begun is left to others."""
        if self._pass is not None:
            self._pass.give_up()
        self._pass = None

    def _tell(self, passing: Pass) -> None:
        if passing.forgotten:
            reports.logger.info(
                "%s: %d messages were forgotten, from before %s",
                self._home.name,
                passing.forgotten,
                passing.mark,
            )
        for why in passing.held_by:
            reports.logger.warning("%s: not everything is forgotten yet: %s", self._home.name, why)


def _rest(began: float, share: float) -> float:
    """Seconds to rest after some work, so that it has no more than its share of the time."""
    return (time.monotonic() - began) * (1 / share - 1)
