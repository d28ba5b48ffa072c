"""Drain: runs stored messages, in order within each key, even if workers crash.

A worker takes messages from lanes, which stay locked until it commits. It first deletes them from
the queue, which takes the place of the claim; after that it is the same unit of work.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

import msgspec

from oncebox.errors import DatabaseUnavailable, TransactionLost
from oncebox.model.outcome import Outcome
from oncebox.processing.crash_isolation import CrashIsolation, IsolatedMessage
from oncebox.processing.observer import report_commit
from oncebox.processing.outcome_log import logger
from oncebox.processing.routing import read_stored, select_batch
from oncebox.processing.search_floors import SearchFloors
from oncebox.processing.stored_batch import Step, Try, WorkerContext, bury_vanished
from oncebox.processing.unit_of_work import record_and_commit, run_handlers
from oncebox.storage.drivers.contract import Work
from oncebox.storage.drivers.transactions import (
    CannotCommit,
    Retries,
    RetryTransaction,
    database_unavailable,
    read,
    run_transaction,
    run_transaction_once,
    with_connection,
)
from oncebox.storage.records import TakenBatch
from oncebox.storage.steps import Steps

BRIEF = 0.2
"""Seconds that a unit may keep all other writers waiting, on a database with one writer."""


class Drain:
    """One worker's pass through the stored messages. One thread or task at a time may use it."""

    def __init__(self, context: WorkerContext) -> None:
        self.database = context.database
        self.worker = context.worker
        self._context = context
        self._unit = context.unit
        self._store = context.unit.store
        self._consumer = context.unit.consumer
        self._limit = context.worker.batch
        self._woke = False
        self._heartbeat_at = time.monotonic()
        self._isolation = CrashIsolation(context)
        self._floors = SearchFloors(self.database, self._store, self._consumer, self.worker)

    # -- start and stop ---------------------------------------------------------------------------

    def sign_on(self) -> Steps[None]:
        """Start. From now on, an end without sign_off() means that the process crashed."""
        yield from run_transaction(self.database, self._heartbeat)

    def sign_off(self) -> Steps[None]:
        """Stop cleanly. If the database is unavailable, it looks like a crash; that is harmless."""
        with suppress(DatabaseUnavailable):
            yield from run_transaction(
                self.database,
                lambda work: self._store.sign_off(work, self._consumer, self.worker),
            )

    def _heartbeat(self, work: Work) -> Steps[None]:
        """Record that this worker is alive, and end transactions that crashed workers left open."""
        yield from self._store.sign_on(work, self._consumer, self.worker)
        yield from self._store.end_overdue_transactions(work)
        self._heartbeat_at = time.monotonic()

    def leave(self) -> Steps[None]:
        """Stop cleanly after an error, so that nothing looks like a crash."""
        with suppress(DatabaseUnavailable):
            yield from self._isolation.undo_crashes()
        yield from self.sign_off()

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> Steps[Step]:
        """Run one unit of work on the messages that are ready."""
        if self._isolation.has_crashes_to_undo:
            step = Step((yield from self._isolation.undo_crashes()))
        else:
            beat_after = (self.worker.heartbeat_timeout - self.worker.timeout) / 2
            if time.monotonic() - self._heartbeat_at > beat_after:
                yield from run_transaction(self.database, self._heartbeat)
            yield from self._floors.step()
            step = yield from self._run()
        report_commit(self._unit.observer, self._consumer, step.outcomes)
        return step

    def _run(self) -> Steps[Step]:
        if self._store.is_exclusive:  # look first: BEGIN would make all other writers wait
            has_work = partial(self._store.has_work, consumer=self._consumer)
            if not (yield from read(self.database, has_work)):
                return Step(idle=True)
        try:
            result = yield from self._commit()
            if isinstance(result, IsolatedMessage):
                result = yield from self._isolation.run(result)
            return result
        finally:
            self._isolation.end()

    def _commit(self) -> Steps[Step | IsolatedMessage]:
        """Run units of work until one commits. Messages that cannot be committed are isolated."""
        retries = Retries(self.database, self._unit.random, limit=self._unit.timeout)
        buried: list[Outcome] = []
        while True:
            attempt = Try()
            try:
                result = yield from with_connection(self.database, partial(self._once, attempt))
            except RetryTransaction as retry:
                reason = retry.__cause__
                is_last = retries.are_used_up
                consequence = "running its messages one by one" if is_last else "retrying it"
                yield from self._rolled_back(attempt, reason, consequence)
                if not attempt.is_committing:
                    buried = yield from bury_vanished(self._context, attempt.rows, attempt.began)
                if not buried and (yield from retries.wait()):
                    continue
            except (CannotCommit, TransactionLost) as error:
                reason = error.__cause__ or error
                yield from self._rolled_back(attempt, reason, "running its messages one by one")
                if isinstance(error, TransactionLost):
                    buried = yield from bury_vanished(self._context, attempt.rows, attempt.began)
            else:
                self._adapt(time.monotonic() - attempt.began)
                return result
            if not attempt.rows and not buried:
                raise database_unavailable(reason) from reason
            isolate = partial(self._store.isolate, rows=attempt.rows)
            yield from run_transaction(self.database, isolate)
            return Step(buried)

    def _rolled_back(
        self, attempt: Try, reason: BaseException | None, consequence: str
    ) -> Steps[None]:
        """Report a rollback, and clear its traces: they would look like a crash."""
        self._unit.observer.batch_rolled_back(self._consumer, reason, consequence)
        if attempt.taken:
            # If this fails, another worker isolates the messages without need.
            with suppress(RetryTransaction):
                yield from run_transaction_once(
                    self.database,
                    lambda work: self._store.clear_crash_evidence(
                        work, self._consumer, attempt.taken, attempt.token
                    ),
                )

    def _adapt(self, elapsed: float) -> None:
        """On a database with one writer, keep units short: halve or double their size."""
        if self._store.is_exclusive:
            grown = self._limit * 2 if elapsed < BRIEF / 2 else self._limit
            wanted = self._limit // 2 if elapsed > BRIEF else grown
            self._limit = max(1, min(wanted, self.worker.batch))

    def _once(self, attempt: Try, work: Work) -> Steps[Step | IsolatedMessage]:
        """Take ready messages, run them, record and commit."""
        yield from work.begin(self._unit.timeout)
        wake = not self._woke  # not twice in a row
        self._woke = False
        taken = yield from self._take(work, wake=wake)
        self._woke = taken.again
        if taken.crashed:
            logger.warning(
                "%s: a worker crashed, running the messages that may be the cause one by one",
                self._consumer,
            )
        rows = select_batch(taken.rows)
        if not rows:
            attempt.taken = taken.rows
            yield from work.commit()
            return Step(idle=wake and not taken.again)
        attempt.taken, attempt.rows, attempt.token = taken.rows, rows, taken.token
        self._unit.observer.batch_started(self._consumer, len(rows))
        is_isolated = rows[0].isolated
        items = read_stored(rows, self._context.registry, decode=not is_isolated)
        plan = attempt.plan = self._unit.plan(items)
        if is_isolated and items[0].route is not None:
            return (yield from self._isolation.prepare(work, items[0], plan))
        yield from self._store.remove(work, rows)
        self._store.guard(work, taken.token)
        runnable = plan.resume()
        yield from run_handlers(self._unit, work, plan, runnable)
        return Step((yield from record_and_commit(self._unit, work, plan, runnable)))

    def _take(self, work: Work, *, wake: bool) -> Steps[TakenBatch]:
        worker = msgspec.structs.replace(self.worker, batch=self._limit)
        taken = yield from self._store.take(
            work, self._consumer, worker, wake=wake, floors=self._floors.floors
        )
        self._floors.took(taken)
        return taken
