"""Housekeeping: messages are forgotten when their time is over, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import msgspec

from oncebox import reports
from oncebox.database import committed, seen
from oncebox.database.contract import Database
from oncebox.database.steps import arun, run
from oncebox.errors import ConfigurationError
from oncebox.retention import Horizon, Retention, horizon
from oncebox.store.contract import Steps, Store

EVERY = 600.0
"""Seconds between two turns, whoever takes them."""

ASK_EVERY = 60.0
"""Seconds after which a process asks again whether it is its turn."""


class Purged(msgspec.Struct, frozen=True):
    """What a purge came to."""

    mark: datetime | None
    """Messages that were minted and received before it are forgotten."""
    forgotten: int
    held_by: Sequence[str] = ()
    """Why the mark is not where the retention would have it."""


class Home(Protocol):
    """What housekeeping needs of its inbox."""

    name: str
    retention: Retention | None

    def _database_for(self, is_async: bool) -> Steps[Database]: ...

    @property
    def _store(self) -> Store: ...


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

    def purge(self, *, progress: Callable[[int], None] | None = None) -> Purged:
        """Forget what is older than the retention, and finished; `progress` is told how many."""
        return run(self._purge(progress, is_async=False))

    async def apurge(self, *, progress: Callable[[int], None] | None = None) -> Purged:
        """See purge()."""
        return await arun(self._purge(progress, is_async=True))

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

    def _purge(self, progress: Callable[[int], None] | None, *, is_async: bool) -> Steps[Purged]:
        database = yield from self._home._database_for(is_async)
        passing = yield from self.begin(database)
        while (yield from passing.step()):
            if progress is not None:
                progress(passing.forgotten)
        return Purged(passing.mark, passing.forgotten, passing.held_by)

    def begin(self, database: Database) -> Steps[Pass]:
        """Set the mark, and find out what there is to do."""
        found = yield from self._horizon(database)
        store, consumer = self._home._store, self._home.name
        wanted = found.mark
        if wanted is None:
            return Pass(database, store, consumer, None, [], found.held_by)
        # The mark comes first: whatever is forgotten after it is known to be old.
        mark = yield from committed(database, lambda work: store.set_mark(work, consumer, wanted))
        windows = yield from seen(database, lambda work: store.old_windows(work, consumer, mark))
        return Pass(database, store, consumer, mark, windows, found.held_by)

    def _horizon(self, database: Database) -> Steps[Horizon]:
        if self._home.retention is None:
            raise ConfigurationError(
                f"inbox {self._home.name!r} keeps everything: give it retention=Retention(days=7)"
            )
        sight = yield from seen(
            database, lambda work: self._home._store.sight(work, self._home.name)
        )
        return horizon(sight, self._home.retention)


class Pass:
    """One purge, window by window."""

    def __init__(
        self,
        database: Database,
        store: Store,
        consumer: str,
        mark: datetime | None,
        windows: Sequence[Any],
        held_by: Sequence[str],
    ) -> None:
        self.mark = mark
        self.held_by = held_by
        self.forgotten = 0
        self._database = database
        self._store = store
        self._consumer = consumer
        self._left = list(reversed(windows))

    def step(self) -> Steps[bool]:
        """One transaction; says whether there was anything to do."""
        mark = self.mark
        if mark is None or not self._left:
            return False
        window = self._left.pop()
        self.forgotten += yield from committed(
            self._database,
            lambda work: self._store.forget(work, self._consumer, mark, window),
        )
        return True


class Housekeeper:
    """Keeps house beside other work: one step at a time, if it is this process's turn."""

    def __init__(self, housekeeping: Housekeeping, home: Home, database: Database) -> None:
        self._housekeeping = housekeeping
        self._home = home
        self._database = database
        self._ask_at = time.monotonic() + ASK_EVERY / 10
        self._pass: Pass | None = None

    def step(self) -> Steps[None]:
        """Do a little, if there is anything to do."""
        if self._home.retention is None:
            return
        if self._pass is not None:
            if not (yield from self._pass.step()):
                self._tell(self._pass)
                self._pass = None
        elif time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY
            take = partial(self._home._store.take_turn, consumer=self._home.name, every=EVERY)
            if (yield from committed(self._database, take)):
                self._pass = yield from self._housekeeping.begin(self._database)

    def _tell(self, passing: Pass) -> None:
        if passing.forgotten:
            reports.logger.info(
                "%s: %d messages were forgotten, from before %s",
                self._home.name,
                passing.forgotten,
                passing.mark,
            )
        for why in passing.held_by:
            reports.logger.warning("%s: nothing newer is forgotten: %s", self._home.name, why)
