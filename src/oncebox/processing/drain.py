"""Drain: what was stored runs, in the order of its keys, whatever dies.

Messages come from lanes that are locked until the commit. They are taken out first, as a claim
takes a new message in; from there on it is the same unit of work. A message that may kill its
process runs alone: its death is recorded before it runs, and taken back when it did not die.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import (
    DatabaseUnavailable,
    TransactionLost,
)
from oncebox.model.outcome import Outcome
from oncebox.processing import outcome_log as reports
from oncebox.processing.crash_isolation import Alone, Risk, Step
from oncebox.processing.plan import cut, read_stored
from oncebox.processing.search_floors import SearchFloors
from oncebox.processing.unit_of_work import CannotCommit
from oncebox.storage.drivers.contract import Work
from oncebox.storage.drivers.transactions import (
    NO_GUARD,
    RETRY_DELAYS,
    RetryTransaction,
    database_unavailable,
    read,
    run_transaction,
    run_transaction_once,
    with_connection,
)
from oncebox.storage.records import PendingMessage, TakenBatch
from oncebox.storage.steps import Steps

BRIEF = 0.2
"""Seconds that a unit may keep all other writers waiting, where it does."""


class Drain(Alone):
    """A worker's way through what was stored. One thread or task steps it at a time."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._limit = self.worker.batch
        self._woke = False
        self._seen_at = time.monotonic()
        self._taken: Sequence[PendingMessage] = ()
        """The messages in flight, and others whose lanes were locked with them."""
        self._floors = SearchFloors(self.database, self._store, self._consumer, self.worker)

    # -- coming and going -------------------------------------------------------------------------

    def sign_on(self) -> Steps[None]:
        """Begin: from here on an end without sign_off() means that the process died."""
        yield from run_transaction(self.database, self._show)

    def sign_off(self) -> Steps[None]:
        """Stop cleanly. If the database is away it looks as if we had died, which is harmless."""
        with suppress(DatabaseUnavailable):
            yield from run_transaction(
                self.database,
                lambda work: self._store.sign_off(work, self._consumer, self.worker),
            )

    def _show(self, work: Work) -> Steps[None]:
        """Say that we are alive; and end what was left behind by those who are not."""
        yield from self._store.sign_on(work, self._consumer, self.worker)
        yield from self._store.end_overdue_transactions(work)
        self._seen_at = time.monotonic()

    def leave(self) -> Steps[None]:
        """Stop cleanly, also in the middle of something: nobody died."""
        with suppress(DatabaseUnavailable):
            yield from self.pay()
        yield from self.sign_off()

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> Steps[Step]:
        """One unit of work on the messages that are ready."""
        if self._debts:
            paid = Step((yield from self.pay()))
            reports.tell(self._consumer, paid.outcomes)
            return paid
        beat_after = (self.worker.heartbeat_timeout - self.worker.timeout) / 2
        if time.monotonic() - self._seen_at > beat_after:
            yield from run_transaction(self.database, self._show)
        yield from self._floors.step()
        step = yield from self._run()
        reports.tell(self._consumer, step.outcomes)
        return step

    def _run(self) -> Steps[Step]:
        if self._store.is_exclusive:  # look first: to begin keeps everybody else from writing
            look = partial(self._store.has_work, consumer=self._consumer)
            if not (yield from read(self.database, look)):
                return Step(idle=True)
        self._risked = None
        try:
            answer = yield from self._persistently()
            if isinstance(answer, Risk):
                answer = yield from self.run_alone(answer)
            self._risked = None
            return answer
        except BaseException:
            self.take_back()
            raise
        finally:
            self.leave_alone()

    def _persistently(self) -> Steps[Step | Risk]:
        """Run units until one goes through; what cannot be committed runs alone from then on."""
        reason: BaseException | None = None
        buried: list[Outcome] = []
        for pause in RETRY_DELAYS:
            self._taken = self._rows = ()
            self._running = None
            self._token, self._began = None, time.monotonic()
            try:
                answer = yield from with_connection(self.database, self._once)
            except RetryTransaction as again:
                reason = again.__cause__
                yield from self._forgive("it is run again", reason)
                if buried := (yield from self._look_for_committed()):
                    break
                if time.monotonic() - self._began >= self._unit.timeout:
                    break  # it would be as slow the next time
                yield partial(self.database.sleep, pause * (0.5 + self._chance.random()))
            except (CannotCommit, TransactionLost) as error:
                reason = error.__cause__ or error
                yield from self._forgive("its messages are run one by one", reason)
                if isinstance(error, TransactionLost):
                    buried = yield from self._look_for(self._rows, self._began)
                break
            else:
                self._adapt(time.monotonic() - self._began)
                return answer
        if not self._rows and not buried:
            raise database_unavailable(reason) from reason
        yield from run_transaction(
            self.database, lambda work: self._store.isolate(work, self._rows)
        )
        return Step(buried)

    def _forgive(self, consequence: str, reason: BaseException | None) -> Steps[None]:
        """We rolled back, and are alive: that must not look like a death."""
        reports.logger.warning(
            "%s: a batch was rolled back (%s); %s",
            self._consumer,
            reports.name(reason),
            consequence,
        )
        if self._taken:
            with suppress(RetryTransaction):  # then others are careful with them for nothing
                yield from run_transaction_once(
                    self.database,
                    lambda work: self._store.clear_crash_evidence(
                        work, self._consumer, self._taken, self._token
                    ),
                )

    def _adapt(self, elapsed: float) -> None:
        """Where a unit keeps all others waiting, its size follows the time that it takes."""
        if self._store.is_exclusive:
            grown = self._limit * 2 if elapsed < BRIEF / 2 else self._limit
            wanted = self._limit // 2 if elapsed > BRIEF else grown
            self._limit = max(1, min(wanted, self.worker.batch))

    def _once(self, work: Work) -> Steps[Step | Risk]:
        """Take what is ready, run it, record, commit."""
        yield from work.begin(self._unit.timeout)
        wake, self._woke = not self._woke, False  # not twice in a row: others are ready too
        taken = yield from self._take(work, wake=wake)
        self._woke = taken.again
        if taken.crashed:
            reports.logger.warning(
                "%s: a worker died; what it may have died of is run one by one", self._consumer
            )
        self._taken, rows = taken.rows, cut(taken.rows)
        if not rows:
            yield from work.commit(*NO_GUARD)
            return Step(idle=wake and not taken.again)
        self._rows, self._token = rows, taken.token
        careful = rows[0].isolated
        items = read_stored(rows, self._registry, decode=not careful)
        plan = self._running = self._plan(items)
        if careful and items[0].route is not None:
            return (yield from self.risk(work, items[0], plan))
        yield from self._store.remove(work, rows)
        return Step((yield from self._conclude(work, plan, plan.resume())))

    def _take(self, work: Work, *, wake: bool) -> Steps[TakenBatch]:
        worker = msgspec.structs.replace(self.worker, batch=self._limit)
        taken = yield from self._store.take(
            work, self._consumer, worker, wake=wake, floors=self._floors.floors
        )
        self._floors.took(taken)
        return taken
