"""Purge: delete finished messages that are older than the retention, a few at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec

from oncebox.errors import ArchiveError, ConfigurationError
from oncebox.model.retention import PurgeLimit, purge_limit
from oncebox.operations.archive.location import folder_of
from oncebox.operations.audit import audit_entry
from oncebox.operations.maintenance import MaintenanceTask
from oncebox.operations.methods import async_method, sync_method
from oncebox.operations.purge_pass import ArchivingPass, Pass
from oncebox.processing.context import Context
from oncebox.processing.outcome_log import logger
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import read, run_transaction
from oncebox.storage.steps import Steps

INTERVAL = 600.0
"""Seconds between two purges of a consumer, whichever worker runs them."""

ASK_INTERVAL = 60.0
"""Seconds after which a worker checks again whether it is its turn to purge."""

SHARE = 0.2
"""Largest share of a worker's time spent purging while messages are waiting."""

COMMAND_SHARE = 0.5
"""Share of the time that an operator's purge works. In the rest, other transactions run."""


class Purged(msgspec.Struct, frozen=True):
    """The result of a purge."""

    watermark: datetime | None
    """Messages that were produced and received before this time are purged."""
    purged: int
    held_back_by: Sequence[str] = ()
    """Why the watermark is older than the retention allows."""


class Purge:
    """Deletes old messages: `inbox.purge`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _preview(self, is_async: bool) -> Steps[tuple[PurgeLimit, int]]:
        """How far the watermark may move now, and how many messages are older."""
        database = yield from self._context.open(is_async)
        limit = yield from self._limit(database)
        if limit.watermark is None:
            return limit, 0
        count = yield from self._context.read(
            is_async, self._context.store.count_old, limit.watermark
        )
        return limit, count

    preview = sync_method(_preview)
    apreview = async_method(_preview)

    def _run(
        self,
        is_async: bool,
        *,
        why: str = "older than the retention",
        by: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Steps[Purged]:
        """Purge finished messages older than the retention. `progress` gets the count so far."""
        audit = audit_entry("purge", by, why)
        context = self._context
        database = yield from context.open(is_async)
        purge = yield from self.begin(database)
        if purge.watermark is not None:
            about = f"messages before {purge.watermark:%Y-%m-%d %H:%M:%S}"
            yield from context.write(is_async, context.store.write_audit, audit=audit, about=about)
        try:
            started = time.monotonic()
            while (yield from purge.step()):
                pause = (time.monotonic() - started) * (1 / COMMAND_SHARE - 1)
                if progress is not None:
                    progress(purge.purged)
                yield partial(database.sleep, pause)
                started = time.monotonic()
        finally:
            purge.give_up()
        return Purged(purge.watermark, purge.purged, purge.held_back_by)

    run = sync_method(_run)
    arun = async_method(_run)

    def begin(self, database: Database) -> Steps[Pass]:
        """Move the watermark, and find the windows of old messages."""
        limit = yield from self._limit(database)
        store, consumer, retention = (
            self._context.store,
            self._context.consumer,
            self._context.retention,
        )
        wanted = limit.watermark
        if wanted is None:
            return Pass(database, store, consumer, None, [], limit.held_back_by)
        # The watermark moves first: a purged message that arrives again is then known to be old.
        watermark = yield from run_transaction(
            database, lambda work: store.set_watermark(work, consumer, wanted)
        )
        windows = yield from read(
            database, lambda work: store.old_windows(work, consumer, watermark)
        )
        common = (database, store, consumer, watermark, windows, limit.held_back_by)
        if retention is None or retention.archive is None:
            return Pass(*common)
        return ArchivingPass(folder_of(retention.archive), *common)

    def _limit(self, database: Database) -> Steps[PurgeLimit]:
        context, store = self._context, self._context.store
        if context.retention is None:
            raise ConfigurationError(
                f"inbox {context.consumer!r} has no retention, so nothing is purged: give it "
                "retention=Retention(days=7)"
            )
        paused = yield from read(
            database, lambda work: store.purge_paused_until(work, context.consumer)
        )
        if paused is not None:
            why = f"messages were restored and are kept until {paused:%Y-%m-%d %H:%M}"
            return PurgeLimit(None, [why])
        progress = yield from read(
            database, lambda work: store.arrival_progress(work, context.consumer)
        )
        return purge_limit(progress, context.retention)


class PurgeTask:
    """Purges between batches of messages, one window at a time, if it is this worker's turn."""

    def __init__(self, purge: Purge, context: Context, database: Database) -> None:
        self._purge = purge
        self._context = context
        self._database = database
        self._ask_at = time.monotonic() + ASK_INTERVAL / 10
        self._pass: Pass | None = None

    def step(self) -> Steps[bool]:
        """Purge one window. Returns True if there is more to purge."""
        if self._context.retention is None:
            return False
        if self._pass is None:
            return (yield from self._begin())
        purge, self._pass = self._pass, None
        if time.monotonic() >= self._ask_at:
            yield from self._take_turn(every=0)  # keep the turn while the purge runs
        try:
            if (yield from purge.step()):
                self._pass = purge
                return True
            self._log(purge)
        except ArchiveError as error:
            logger.error("%s: %s; retrying later", self._context.consumer, error)
        return False

    def _begin(self) -> Steps[bool]:
        if time.monotonic() >= self._ask_at and (yield from self._take_turn(every=INTERVAL)):
            self._pass = yield from self._purge.begin(self._database)
        return self._pass is not None

    def _take_turn(self, *, every: float) -> Steps[bool]:
        """True if it is this worker's turn: no worker had a turn within `every` seconds."""
        self._ask_at = time.monotonic() + ASK_INTERVAL
        take = partial(
            self._context.store.take_purge_turn, consumer=self._context.consumer, every=every
        )
        return (yield from run_transaction(self._database, take))

    def stop(self) -> None:
        """Stop a purge that has begun; another worker continues it."""
        if self._pass is not None:
            self._pass.give_up()
        self._pass = None

    def _log(self, purge: Pass) -> None:
        consumer = self._context.consumer
        if purge.purged:
            logger.info(
                "%s: purged %d messages from before %s", consumer, purge.purged, purge.watermark
            )
        for why in purge.held_back_by:
            logger.warning("%s: some old messages are not purged yet: %s", consumer, why)


def purge_task(purge: Purge, context: Context, database: Database) -> MaintenanceTask:
    """The purge as a maintenance task of a worker."""
    task = PurgeTask(purge, context, database)
    return MaintenanceTask("purge", task.step, interval=0, share=SHARE, stop=task.stop)
