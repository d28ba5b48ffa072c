"""Gaps: numbers of keys that are waited for, and what is done when they do not come."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from oncebox.errors import NotFound
from oncebox.model.gap import Gap
from oncebox.model.retention import is_behind
from oncebox.model.sequencing import Gaps, Numbers, admit
from oncebox.operations.audit import audit_entry
from oncebox.operations.methods import async_method, sync_method
from oncebox.processing import outcome_log as reports
from oncebox.processing.context import Context
from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    RetryTransaction,
    read,
    run_transaction,
    run_transaction_once,
)
from oncebox.storage.records import AuditEntry, Count, Move
from oncebox.storage.steps import Steps

LOOK_EVERY = 1.0
"""Seconds between two looks."""

AT_ONCE = 20
"""Gaps that are looked at between two units of work."""


class KeyGaps:
    """The missing sequence numbers of keys: `inbox.gaps`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _find(
        self, is_async: bool, *, key: str | None = None, limit: int = 100
    ) -> Steps[list[Gap]]:
        """Find the gaps, oldest first."""
        return self._context.read(is_async, self._context.store.gaps, key=key, limit=limit)

    find = sync_method(_find)
    afind = async_method(_find)

    def _skip(
        self, is_async: bool, key: str, *, why: str, by: str | None = None
    ) -> Steps[list[Gap]]:
        """Skip the missing sequence numbers of a key. Returns the gaps that were skipped.

        A message that arrives later with one of these numbers is quarantined.
        """
        audit = audit_entry("skip", by, why)
        found = yield from self._find(is_async, key=key, limit=AT_ONCE)
        if not found:
            raise NotFound(f"key {key!r} has no missing sequence number")
        store, consumer = self._context.store, self._context.consumer
        database = yield from self._context.open(is_async)
        skipped = []
        for gap in found:
            skip = partial(skip_gap, store=store, consumer=consumer, gap=gap, audit=audit)
            if (yield from run_transaction(database, skip)):
                skipped.append(gap)
        return skipped

    skip = sync_method(_skip)
    askip = async_method(_skip)


def skip_gap(
    work: Work, *, store: Store, consumer: str, gap: Gap, audit: AuditEntry, age: float = 0
) -> Steps[bool]:
    """Go on with the lowest number that waits, if it is still this gap, and its key is free."""
    if not (yield from store.try_lock_key(work, consumer, gap.key)):
        return False
    if not (yield from store.is_gap(work, consumer, gap, age=age)):
        return False
    count = Count(gap.key, gap.epoch)
    known = (yield from store.sequence_states(work, consumer, [count])).get(count)
    if known is None or not known.early:
        return False
    first = known.early[0]
    yield from _go_on(work, store, consumer, count, Numbers(first, known.early, known.is_cut))
    yield from store.write_audit(work, consumer, audit, _described(gap, first))
    return True


def continue_count(work: Work, *, store: Store, consumer: str, count: Count) -> Steps[bool]:
    """Store what waits for nothing any more: there was too much to be stored at once."""
    if not (yield from store.try_lock_key(work, consumer, count.key)):
        return False
    known = (yield from store.sequence_states(work, consumer, [count])).get(count)
    if known is None or known.next not in known.early[:1]:
        return False
    yield from _go_on(work, store, consumer, count, known)
    return True


def _go_on(work: Work, store: Store, consumer: str, count: Count, known: Numbers) -> Steps[None]:
    admission = admit(known, [])
    move = Move(count, admission.next, admission.has_early, admission.admitted)
    yield from store.advance_sequences(work, consumer, [move])


def _described(gap: Gap, first: int) -> str:
    epoch = f" of epoch {gap.epoch!r}" if gap.epoch else ""
    return f"key {gap.key!r}{epoch}: {missing(gap.next, first)}"


def missing(following: int | None, first: int) -> str:
    """The numbers between the next to come and the first that waits."""
    if following is None:
        return f"what is before number {first}"
    last = first - 1
    return f"number {last}" if following == last else f"numbers {following} to {last}"


class GapSkipper:
    """Sees to gaps whose time is over, one transaction at a time."""

    def __init__(self, database: Database, store: Store, consumer: str, gaps: Gaps) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._gaps = gaps
        self._look_at = 0.0
        self._clear_since: float | None = time.monotonic()
        """Since when nothing has lagged behind, as far as we have seen; None: for ever."""
        self._told: set[tuple[str, str, datetime]] = set()
        """What was said to be held, as far as it still is."""

    def hurry(self) -> None:
        """Whoever drains once in a while has no time to watch: what is overdue is skipped."""
        self._clear_since = None

    def step(self) -> Steps[bool]:
        """Go on where a number was waited for long enough; says whether anything was done."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY
        store, consumer = self._store, self._consumer
        cut = yield from read(self._database, partial(store.cut_sequences, consumer=consumer))
        done = False
        for count in cut:
            go_on = partial(continue_count, store=store, consumer=consumer, count=count)
            done = (yield from self._try(go_on)) or done
        if (yield from self._is_clear()):
            done = (yield from self._skip_due()) or done
            yield from self._tell_of_held()
        if done:
            self._look_at = 0.0
        return done

    def _is_clear(self) -> Steps[bool]:
        """Whether nothing has lagged behind for long enough: the number may be still to come."""
        look = partial(self._store.partition_progress, consumer=self._consumer)
        parts = yield from read(self._database, look)
        now = time.monotonic()
        if any(is_behind(part, datetime.now(UTC)) for part in parts):
            self._clear_since = now
        limit = self._gaps.limit.total_seconds()
        return self._clear_since is None or now - self._clear_since >= limit

    def _skip_due(self) -> Steps[bool]:
        """Go on without numbers that were waited for long enough; says whether any were."""
        if self._gaps.then == "hold":
            return False
        done = False
        for gap in (yield from self._due(longest=self._gaps.longest)):
            done = (yield from self._skip(gap)) or done
        return done

    def _due(self, longest: int | None = None) -> Steps[list[Gap]]:
        look = partial(
            self._store.gaps,
            consumer=self._consumer,
            age=self._gaps.limit.total_seconds(),
            longest=longest,
            limit=AT_ONCE,
        )
        return (yield from read(self._database, look))

    def _skip(self, gap: Gap) -> Steps[bool]:
        age = self._gaps.limit.total_seconds()
        audit = AuditEntry("skip", "oncebox", f"not come within {age:g} seconds")
        skip = partial(
            skip_gap, store=self._store, consumer=self._consumer, gap=gap, audit=audit, age=age
        )
        if not (yield from self._try(skip)):
            return False
        reports.logger.warning(
            "%s: skipped %s; they did not come", self._consumer, _described(gap, gap.lowest)
        )
        return True

    def _tell_of_held(self) -> Steps[None]:
        """Say of the oldest keys that are held why they are, once."""
        held = set()
        for gap in (yield from self._due()):
            name = (gap.key, gap.epoch, gap.waiting_since)
            if why := self._why_held(gap):
                held.add(name)
            if why and name not in self._told:
                reports.logger.error(
                    "%s: %s did not come: the key waits, %s; see `oncebox gaps`",
                    self._consumer,
                    _described(gap, gap.lowest),
                    why,
                )
        self._told = held

    def _why_held(self, gap: Gap) -> str | None:
        if gap.next is not None and gap.lowest - gap.next > self._gaps.longest:
            return "and too many are missing to go on"
        return "and is held" if self._gaps.then == "hold" else None

    def _try(self, body: partial[Steps[bool]]) -> Steps[bool]:
        try:
            return (yield from run_transaction_once(self._database, body))
        except RetryTransaction:  # the next time
            return False
