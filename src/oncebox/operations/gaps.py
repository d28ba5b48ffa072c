"""Gaps: find missing sequence numbers, and skip them after a time limit or by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from oncebox.errors import NotFound
from oncebox.model.gap import Gap
from oncebox.model.retention import is_behind
from oncebox.model.sequencing import Gaps, SequenceState, admit
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
from oncebox.storage.records import AuditEntry, SequenceKey, SequenceMove
from oncebox.storage.steps import Steps

CHECK_INTERVAL = 1.0
"""Seconds between two checks for gaps."""

AT_ONCE = 20
"""Gaps that are skipped between two batches of messages."""


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
    """Continue a key at its lowest waiting number.

    Returns False if the gap has changed meanwhile, or another transaction has locked its key.
    """
    if not (yield from store.try_lock_key(work, consumer, gap.key)):
        return False
    if not (yield from store.is_gap(work, consumer, gap, age=age)):
        return False
    count = SequenceKey(gap.key, gap.epoch)
    known = (yield from store.sequence_states(work, consumer, [count])).get(count)
    if known is None or not known.early:
        return False
    first = known.early[0]
    yield from _advance(
        work, store, consumer, count, SequenceState(first, known.early, known.is_cut)
    )
    yield from store.write_audit(work, consumer, audit, _described(gap, first))
    return True


def continue_sequence(
    work: Work, *, store: Store, consumer: str, count: SequenceKey
) -> Steps[bool]:
    """Store more waiting messages of a sequence: there were too many to store all at once."""
    if not (yield from store.try_lock_key(work, consumer, count.key)):
        return False
    known = (yield from store.sequence_states(work, consumer, [count])).get(count)
    if known is None or known.next not in known.early[:1]:
        return False
    yield from _advance(work, store, consumer, count, known)
    return True


def _advance(
    work: Work, store: Store, consumer: str, count: SequenceKey, known: SequenceState
) -> Steps[None]:
    admission = admit(known, [])
    move = SequenceMove(count, admission.next, admission.has_early, admission.admitted)
    yield from store.advance_sequences(work, consumer, [move])


def _described(gap: Gap, first: int) -> str:
    epoch = f" of epoch {gap.epoch!r}" if gap.epoch else ""
    return f"key {gap.key!r}{epoch}: {missing(gap.next, first)}"


def missing(following: int | None, first: int) -> str:
    """The missing numbers: from the next expected one up to the first that waits."""
    if following is None:
        return f"all numbers before {first}"
    last = first - 1
    return f"number {last}" if following == last else f"numbers {following} to {last}"


class GapSkipper:
    """Skips gaps whose time limit has passed, one transaction at a time."""

    def __init__(self, database: Database, store: Store, consumer: str, gaps: Gaps) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._gaps = gaps
        self._next_check_at = 0.0
        self._clear_since: float | None = time.monotonic()
        """No partition has lagged since this time, as far as this worker saw; None: do not wait."""
        self._logged: set[tuple[str, str, datetime]] = set()
        """Gaps that were logged as held, as long as they are held."""

    def hurry(self) -> None:
        """Skip gaps now if their time limit has passed.

        For processes that drain once in a while: they cannot watch whether a partition lags behind.
        """
        self._clear_since = None

    def step(self) -> Steps[bool]:
        """Skip gaps whose time limit has passed. Returns True if there were any."""
        if time.monotonic() < self._next_check_at:
            return False
        self._next_check_at = time.monotonic() + CHECK_INTERVAL
        store, consumer = self._store, self._consumer
        cut = yield from read(self._database, partial(store.cut_sequences, consumer=consumer))
        done = False
        for count in cut:
            proceed = partial(continue_sequence, store=store, consumer=consumer, count=count)
            done = (yield from self._try(proceed)) or done
        if (yield from self._is_clear()):
            done = (yield from self._skip_due()) or done
            yield from self._log_held()
        if done:
            self._next_check_at = 0.0
        return done

    def _is_clear(self) -> Steps[bool]:
        """True if no partition has lagged behind for the time limit.

        While one lags behind, the missing number may still arrive.
        """
        load = partial(self._store.partition_progress, consumer=self._consumer)
        partitions = yield from read(self._database, load)
        now = time.monotonic()
        if any(is_behind(partition, datetime.now(UTC)) for partition in partitions):
            self._clear_since = now
        limit = self._gaps.limit.total_seconds()
        return self._clear_since is None or now - self._clear_since >= limit

    def _skip_due(self) -> Steps[bool]:
        """Skip the gaps whose time limit has passed. Returns True if there were any."""
        if self._gaps.then == "hold":
            return False
        done = False
        for gap in (yield from self._due(longest=self._gaps.longest)):
            done = (yield from self._skip(gap)) or done
        return done

    def _due(self, longest: int | None = None) -> Steps[list[Gap]]:
        load = partial(
            self._store.gaps,
            consumer=self._consumer,
            age=self._gaps.limit.total_seconds(),
            longest=longest,
            limit=AT_ONCE,
        )
        return (yield from read(self._database, load))

    def _skip(self, gap: Gap) -> Steps[bool]:
        age = self._gaps.limit.total_seconds()
        audit = AuditEntry("skip", "oncebox", f"did not arrive within {age:g} seconds")
        skip = partial(
            skip_gap, store=self._store, consumer=self._consumer, gap=gap, audit=audit, age=age
        )
        if not (yield from self._try(skip)):
            return False
        reports.logger.warning(
            "%s: %s did not arrive within %g s: skipped, the later messages of the key run",
            self._consumer,
            _described(gap, gap.lowest),
            age,
        )
        return True

    def _log_held(self) -> Steps[None]:
        """Log once for each of the oldest held keys why it is held."""
        held = set()
        for gap in (yield from self._due()):
            name = (gap.key, gap.epoch, gap.waiting_since)
            if why := self._why_held(gap):
                held.add(name)
            if why and name not in self._logged:
                reports.logger.error(
                    "%s: %s did not arrive, the key waits (%s); skip it with `oncebox gaps APP "
                    "--key KEY --skip`",
                    self._consumer,
                    _described(gap, gap.lowest),
                    why,
                )
        self._logged = held

    def _why_held(self, gap: Gap) -> str | None:
        if gap.next is not None and gap.lowest - gap.next > self._gaps.longest:
            return f"more than {self._gaps.longest} numbers are missing"
        return 'Gaps(then="hold")' if self._gaps.then == "hold" else None

    def _try(self, body: partial[Steps[bool]]) -> Steps[bool]:
        try:
            return (yield from run_transaction_once(self._database, body))
        except RetryTransaction:  # try again at the next check
            return False
