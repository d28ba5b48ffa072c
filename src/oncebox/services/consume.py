"""Consumer: hands what a source delivers to an inbox, and settles it after the commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

import msgspec

from oncebox import reports
from oncebox.database import committed, seen
from oncebox.database.contract import Database
from oncebox.errors import ConfigurationError, DatabaseUnavailable, NotOwner
from oncebox.inbox import Inbox
from oncebox.liveness import is_gone
from oncebox.message import Delivery
from oncebox.outcome import Outcome
from oncebox.services.loop import Loop
from oncebox.sources.contract import Batch, Source
from oncebox.store.contract import Steps
from oncebox.store.records import Advance, Position, Worker

A_DAY = timedelta(days=1)

LOOK = 0.25
"""Seconds that a source is asked for at a time: so long may a stop take."""

ASSIGN_EVERY = 1.0
"""Seconds between two looks for parts that nobody reads."""


class Consumer(Loop):
    """Reads a source until it ends or stop() is called.

    `mode` is inline (handlers run at once) or stored (a drainer runs them). A part of the source,
    such as a file, has one reader at a time: others stand by, and take over when it dies.
    """

    def __init__(
        self,
        inbox: Inbox,
        source: Source,
        *,
        mode: Literal["inline", "stored"] = "inline",
        batch: int = 100,
    ) -> None:
        super().__init__()
        if mode not in ("inline", "stored"):
            raise ConfigurationError(f"mode is 'inline' or 'stored', not {mode!r}")
        self._inbox = inbox
        self._source = source
        self._mode = mode
        self._batch = batch
        self._own: dict[str, Position] = {}
        self._assigned_at = 0.0
        self._finished = False
        self._is_compared = False

    def _service(self, *, is_async: bool) -> Steps[None]:
        try:
            with self._inbox._working(self._batch) as worker:
                while not self.is_stopping and not self._finished:
                    try:
                        database = yield from self._inbox._database_for(is_async)
                        yield from self._consume(database, worker, is_async)
                    except DatabaseUnavailable as error:
                        yield from self._outage(self._inbox.name, error)
        finally:
            yield self._off(self._source.close, is_async)

    def _consume(self, database: Database, worker: Worker, is_async: bool) -> Steps[None]:
        while not self.is_stopping:
            yield from self._assign(database, worker)
            if self._own and not self._is_compared:
                self._is_compared = True
                self._compare((yield self._off(self._source.keeps, is_async)))
            batch = yield self._off(partial(self._source.read, self._batch, LOOK), is_async)
            self.beat()
            if batch is not None:
                yield from self._handle(database, worker, batch, is_async)
            elif self._finished:
                break
            elif not self._source.features.assigns:
                self._assigned_at = 0.0  # there is time to look around
        yield from self._hold_on(database, worker)
        yield from self._sign_off(database, worker, list(self._own), ended=self._finished)

    def _compare(self, keeps: timedelta | None) -> None:
        """Warn where the source remembers for longer than the inbox."""
        retention = self._inbox.retention
        if keeps is None or retention is None or keeps <= retention.age:
            return
        kept = "for ever" if keeps == timedelta.max else f"for {keeps / A_DAY:g} days"
        reports.logger.warning(
            "%s: %s keeps messages %s, and this inbox forgets them after %g days: what is "
            "delivered anew after that is quarantined as too late, not absorbed; give it a longer "
            "Retention",
            self._inbox.name,
            self._source.name,
            kept,
            retention.days,
        )

    def _handle(
        self, database: Database, worker: Worker, batch: Batch, is_async: bool
    ) -> Steps[None]:
        """Process a batch and settle it. What the database does not take now, it takes later."""
        suspects = self._own[batch.part].suspects if batch.part in self._own else 0
        deliveries = _suspected(batch.deliveries, suspects)
        left = max(0, suspects - len(deliveries))
        try:
            outcomes = yield from self._process(deliveries, batch, left, worker, is_async)
        except NotOwner:
            reports.logger.warning(
                "%s: another worker reads %s of %s now; nothing was committed",
                self._inbox.name,
                batch.part,
                self._source.name,
            )
            self._forget(batch.part)
            return
        if batch.part in self._own:
            moved = msgspec.structs.replace(
                self._own[batch.part], next=batch.new, mark=batch.mark, suspects=left
            )
            self._own[batch.part] = moved
        yield self._off(partial(self._source.settle, batch, outcomes), is_async)

    def _process(
        self,
        deliveries: Sequence[Delivery],
        batch: Batch,
        suspects: int,
        worker: Worker,
        is_async: bool,
    ) -> Steps[list[Outcome]]:
        advance = None
        if self._source.features.positions:
            advance = Advance(
                source=self._source.name,
                part=batch.part,
                owner=worker.incarnation,
                old=batch.old,
                new=batch.new,
                mark=batch.mark,
                suspects=suspects,
                patience=worker.patience,
            )
        while True:
            try:
                outcomes = yield from self._inbox._process(
                    deliveries,
                    is_async=is_async,
                    receiving=self._mode == "stored",
                    advance=advance,
                )
                self._go_on()
                return outcomes
            except DatabaseUnavailable as error:
                if self.is_stopping:
                    raise
                yield from self._outage(self._inbox.name, error)

    # -- who reads what ---------------------------------------------------------------------------

    def _assign(self, database: Database, worker: Worker) -> Steps[None]:
        """Look for parts that nobody reads, and whether anything is left to come."""
        lately = self._assigned_at and time.monotonic() - self._assigned_at < ASSIGN_EVERY
        if lately and not self._source.is_reassigned():
            return
        self._assigned_at = time.monotonic()
        features, parts = self._source.features, self._source.parts()
        if features.assigns:
            yield from self._give_up(database, worker, [p for p in self._own if p not in parts])
        known = yield from self._positions(database)
        for part in parts:
            if part not in self._own:
                yield from self._try(database, worker, part, known.get(part))
        yield from self._hold_on(database, worker)
        if features.ends:
            finished = [self._source.is_finished(p, self._own.get(p, known.get(p))) for p in parts]
            self._finished = all(finished)

    def _positions(self, database: Database) -> Steps[dict[str, Position]]:
        if not self._source.features.positions:
            return {}
        store, name = self._inbox._store, self._source.name
        found = yield from seen(
            database, lambda work: store.positions(work, self._inbox.name, name)
        )
        self._go_on()
        return found

    def _try(
        self, database: Database, worker: Worker, part: str, known: Position | None
    ) -> Steps[None]:
        """Become the reader of a part, unless somebody who lives reads it, or nothing is left."""
        features = self._source.features
        if not features.positions:
            self._own[part] = Position(part, 0)
            return
        if not features.assigns and known is not None and not _is_free(known, worker):
            return
        if known is not None and self._source.is_finished(part, known):
            return
        wanted = known or self._source.beginning(part)
        if wanted is None:
            return
        taken = yield from committed(
            database,
            lambda work: self._inbox._store.take_over(
                work,
                self._inbox.name,
                self._source.name,
                worker,
                wanted,
                any_owner=features.assigns,
            ),
        )
        if taken is not None:
            self._own[part] = taken
            self._source.open(taken)

    def _hold_on(self, database: Database, worker: Worker) -> Steps[None]:
        """Say that we are alive, and how far behind."""
        store, source = self._inbox._store, self._source
        if not self._own or not source.features.positions:
            return
        gauges = {part: source.gauge(part) for part in self._own}
        yield from committed(
            database,
            lambda work: store.hold_on(work, self._inbox.name, source.name, worker, gauges),
        )

    def _give_up(self, database: Database, worker: Worker, parts: Sequence[str]) -> Steps[None]:
        """Let go of parts that somebody else is to read; if the database is away, unsigned."""
        try:
            yield from self._sign_off(database, worker, parts)
        finally:
            for part in parts:
                self._forget(part)

    def _sign_off(
        self, database: Database, worker: Worker, parts: Sequence[str], *, ended: bool = False
    ) -> Steps[None]:
        """Say what we read no more, so that nobody takes us for dead."""
        store, name = self._inbox._store, self._source.name
        if not self._source.features.positions:
            return
        for part in parts:
            yield from committed(
                database,
                lambda work, part=part: store.let_go(  # type: ignore[misc]
                    work, self._inbox.name, name, worker, part, ended=ended
                ),
            )

    def _forget(self, part: str) -> None:
        self._own.pop(part, None)
        self._source.release(part)


def _is_free(position: Position, worker: Worker) -> bool:
    """Whether nobody who is alive reads a part."""
    if position.owner is None or position.owner == worker.incarnation or position.is_overdue:
        return True
    return is_gone(position.owner_name or "", position.owner)


def _suspected(deliveries: Sequence[Delivery], count: int) -> Sequence[Delivery]:
    """The first ones were in the hands of a reader that vanished: one of them may be why."""
    if not count:
        return deliveries
    first = [msgspec.structs.replace(d, redelivered=True) for d in deliveries[:count]]
    return [*first, *deliveries[count:]]
