"""Alone: a message that may kill its process. Its death is recorded before it runs, and taken back
when it did not die."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import GuardFailed, OnceboxError, ProcessCrashed, TooSlow, TransactionLost
from oncebox.model.error_text import describe
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Outcome, Reason
from oncebox.model.retry import Retry
from oncebox.processing import outcome_log as reports
from oncebox.processing.handlers import Registry
from oncebox.processing.plan import Item, Plan, read_stored
from oncebox.processing.unit_of_work import CannotCommit, Unit, conclude, finish, run_all
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    NO_GUARD,
    RETRY_DELAYS,
    RetryTransaction,
    run_transaction,
    with_connection,
)
from oncebox.storage.records import PendingMessage, WorkerInfo
from oncebox.storage.steps import Steps

AFTER_ANOTHER = 0.2
"""Seconds that one waits while another one runs alone in this process."""

BRAKE = 5
"""So many messages that killed their process lately are no accident any more."""

LONGEST_REST = 60.0

MIN_CRASHES = 3
"""Deaths in a row before a message is blamed for them, however few attempts it has: somebody may
have killed its process for reasons of his own."""

_alone_here = threading.Lock()
"""Two messages that may kill their process do not run in one process at the same time."""

if hasattr(os, "register_at_fork"):  # a child has nothing to do with what its parent is at
    os.register_at_fork(after_in_child=lambda: globals().update(_alone_here=threading.Lock()))


class Step(msgspec.Struct, frozen=True):
    """What one step of a drain came to."""

    outcomes: Sequence[Outcome] = ()
    idle: bool = False
    """Nothing was ready."""


class Risk(msgspec.Struct, frozen=True):
    """A message that may kill its process, and the token by which this run of it is known."""

    row: PendingMessage
    retry: Retry
    token: int


class UndoCrash(msgspec.Struct, frozen=True):
    """A death that was recorded, and did not happen."""

    risk: Risk
    counted: bool
    delay: float
    error: BaseException | None
    began: float
    """When the run began, by the monotonic clock."""
    lost: bool = False
    """Its transaction was ended by somebody else: perhaps it was committed."""


class Alone:
    """How a worker runs what may kill its process: by itself, its death recorded beforehand."""

    def __init__(
        self,
        *,
        database: Database,
        unit: Unit,
        registry: Registry,
        ordering: Ordering,
        worker: WorkerInfo,
        chance: random.Random,
    ) -> None:
        self.database = database
        self.worker = worker
        self._unit = unit
        self._store = unit.store
        self._consumer = unit.consumer
        self._registry = registry
        self._ordering = ordering
        self._chance = chance
        self._rows: Sequence[PendingMessage] = ()
        """What is in hands, the token of its transaction, and when that began."""
        self._token: Any = None
        self._began = 0.0
        self._is_alone = False
        self._waits_for_key = False
        self._running: Plan | None = None
        """What runs in the present transaction."""
        self._risked: Risk | None = None
        self._debts: list[UndoCrash] = []
        self._runs_alone_at: float | None = None

    def risk(self, work: Work, item: Item, plan: Plan) -> Steps[Step | Risk]:
        """Before a message runs alone: record its death, unless it died often enough."""
        assert item.stored is not None
        assert item.route is not None
        row, retry = item.stored, item.route.handler.retry
        if (fate := _fate(row, retry)) is not None:
            yield from self._store.remove(work, [row])
            plan.resume()
            plan.kill(item, *fate)
            return Step((yield from self._conclude(work, plan, [])))
        rest = yield from self._brake(work)
        if rest or not self._be_alone():
            yield from self._store.postpone(work, self._consumer, row, delay=rest or AFTER_ANOTHER)
            yield from work.commit(*NO_GUARD)
            return Step()
        token = yield from self._store.postpone(
            work,
            self._consumer,
            row,
            delay=self._unit.timeout + self._backoff(retry, row.crashes),
            crashed=True,
            error=str(ProcessCrashed()),
        )
        yield from work.commit(*NO_GUARD)
        self._risked = Risk(row, retry, token)
        return self._risked

    def _brake(self, work: Work) -> Steps[float]:
        """Seconds to put a message off where one after the other kills its process."""
        crashes = yield from self._store.count_crashes(work, self._consumer)
        if crashes >= BRAKE:  # those that run at the moment are no deaths yet
            crashes -= yield from self._store.count_other_workers(work, self._consumer, self.worker)
        if crashes < BRAKE:
            self._runs_alone_at = None
            return 0
        now = time.monotonic()
        if self._runs_alone_at is None:
            rest = min(2.0 ** min(crashes - BRAKE, 10), LONGEST_REST)
            self._runs_alone_at = now + rest
            reports.logger.error(
                "%s: %d messages have killed their process lately, so it is hardly about one of "
                "them: the drain slows down, and this worker runs the next suspect in %.0f "
                "seconds; look at the handlers, and at what they need",
                self._consumer,
                crashes,
                rest,
            )
        if now < self._runs_alone_at:
            return self._runs_alone_at - now
        self._runs_alone_at = None
        return 0

    def run_alone(self, risk: Risk) -> Steps[Step]:
        """Run it by itself; its death is taken back if it does not die."""
        reason: BaseException | None = None
        lost = False
        for pause in RETRY_DELAYS:
            self._began = time.monotonic()
            self._rows, self._waits_for_key = (), False
            self._running = None
            try:
                outcomes = yield from with_connection(
                    self.database, lambda work: self._alone(work, risk)
                )
            except RetryTransaction as again:
                reason = again.__cause__ or again
                lost = lost or not self._is_committing
                slow = time.monotonic() - self._began >= self._unit.timeout
                if slow or not error_codes.is_conflict(reason):
                    return (yield from self._owe(risk, TooSlow() if slow else reason, lost=lost))
                yield partial(self.database.sleep, pause * (0.5 + self._chance.random()))
            except (CannotCommit, TransactionLost) as error:
                reason, lost = error.__cause__ or error, isinstance(error, TransactionLost)
                break
            else:
                if outcomes is None:
                    return (yield from self._owe(risk, None, lost=lost))
                return Step(outcomes)
        return (yield from self._owe(risk, reason, lost=lost))

    def _alone(self, work: Work, risk: Risk, **fate: Any) -> Steps[list[Outcome] | None]:
        """Take it out and run it; None if somebody overtook us."""
        yield from work.begin(self._unit.timeout)
        taken = yield from self._store.take_isolated(work, risk.row, risk.token, self._unit.timeout)
        if taken is None:
            yield from work.commit(*NO_GUARD)
            return None
        self._rows, self._token = taken.rows, taken.token
        plan = self._running = self._plan(read_stored(taken.rows, self._registry), **fate)
        runnable = plan.resume()
        yield from run_all(self._unit, work, plan, runnable, self._token)
        # To be recorded it needs the lock of its key. If the time runs out over that, it is not to
        # blame: somebody else was slow.
        self._waits_for_key = True
        yield from self._store.lock_key(work, self._consumer, risk.row.message.key)
        self._waits_for_key = False
        name = self.worker.name
        return (yield from finish(self._unit, work, name, plan, runnable, self._token))

    def _backoff(self, retry: Retry, failures: int) -> float:
        return retry.backoff(failures + 1, self._chance.random()).total_seconds()

    # -- only one of them at a time in a process -------------------------------------------------

    def _be_alone(self) -> bool:
        """Whether no other message that may kill runs in this process, nor will until we leave."""
        self._is_alone = self._is_alone or _alone_here.acquire(blocking=False)
        return self._is_alone

    def leave_alone(self) -> None:
        if self._is_alone:
            self._is_alone = False
            _alone_here.release()

    # -- debts ------------------------------------------------------------------------------------

    def _owe(self, risk: Risk, error: BaseException | None, *, lost: bool = False) -> Steps[Step]:
        """Its process did not die: the record of that is to be taken back, now or later.

        A run that had begun is a failed attempt, or one that ends its connection would go on for
        ever.
        """
        reports.logger.warning(
            "%s: message %r did not run to its end (%s)",
            self._consumer,
            risk.row.message.id,
            "another worker took it over" if error is None else reports.name(error),
        )
        delay = self._backoff(risk.retry, risk.row.attempts)
        counted = bool(self._rows) and not self._waits_for_key
        self._debts.append(UndoCrash(risk, counted, delay, error, self._began, lost))
        self._risked = None
        return Step((yield from self.pay()))

    def pay(self) -> Steps[list[Outcome]]:
        """Take back deaths that did not happen; what the database does not let through is kept."""
        outcomes: list[Outcome] = []
        while self._debts:
            outcomes += yield from self._pay_one(self._debts[0])
            self._debts.pop(0)
        return outcomes

    def _pay_one(self, debt: UndoCrash) -> Steps[list[Outcome]]:
        if debt.counted:
            with suppress(RetryTransaction):
                failed = yield from with_connection(
                    self.database, partial(self._alone, risk=debt.risk, failed=debt.error)
                )
                if failed is not None:
                    return failed
        # It is somebody else's by now, or gone.
        yield from run_transaction(self.database, partial(self._absolve, debt))
        if not debt.lost:
            return []
        return (yield from self._look_for([debt.risk.row], debt.began))

    def _absolve(self, debt: UndoCrash, work: Work) -> Steps[None]:
        yield from self._store.undo_crash(
            work,
            debt.risk.row,
            debt.risk.token,
            counted=debt.counted,
            delay=debt.delay,
            error=None if debt.error is None else describe(debt.error).line,
        )

    def take_back(self) -> None:
        """Whatever happened: a message whose death is recorded, and we are alive."""
        if self._risked is not None:
            debt = UndoCrash(self._risked, counted=False, delay=0, error=None, began=self._began)
            self._debts.append(debt)
            self._risked = None

    # -- units of work ----------------------------------------------------------------------------

    def _plan(self, items: list[Item], **fate: Any) -> Plan:
        return Plan(items, ordering=self._ordering, chance=self._chance.random, **fate)

    def _conclude(self, work: Work, plan: Plan, runnable: list[Item]) -> Steps[list[Outcome]]:
        name = self.worker.name
        return (yield from conclude(self._unit, work, name, plan, runnable, self._token))

    @property
    def _is_committing(self) -> bool:
        return self._running is not None and self._running.is_committing

    def _look_for_committed(self) -> Steps[list[Outcome]]:
        """As _look_for(), after a transaction whose COMMIT was not sent by us."""
        if self._is_committing:
            return []
        return (yield from self._look_for(self._rows, self._began))

    def _look_for(self, rows: Sequence[PendingMessage], began: float) -> Steps[list[Outcome]]:
        """After a transaction that got lost: if it took its messages along, a handler committed it
        past every guard. Nobody knows what of their work is done: that is for somebody to see."""
        if not rows:
            return []
        return (
            yield from run_transaction(self.database, partial(self._bury_vanished, rows, began))
        )

    def _bury_vanished(
        self, rows: Sequence[PendingMessage], began: float, work: Work
    ) -> Steps[list[Outcome]]:
        within = time.monotonic() - began
        gone = yield from self._store.find_vanished(work, self._consumer, rows, within=within)
        if not gone:
            return []
        items = read_stored(gone, self._registry, decode=False)
        plan = self._plan(items)
        plan.resume()
        for item in items:
            plan.kill(item, Reason.transaction_lost, GuardFailed())
        yield from self._store.record(
            work, self._consumer, self.worker.name, plan.entries, has_hooks=self._unit.tell
        )
        return plan.outcomes


def _fate(row: PendingMessage, retry: Retry) -> tuple[Reason, OnceboxError] | None:
    """Why a message is not run any more: it killed often enough, or never came to its end."""
    if row.crashes >= max(retry.max_attempts, MIN_CRASHES):
        return Reason.crashed, ProcessCrashed()
    if row.attempts > retry.max_attempts:
        return Reason.out_of_attempts, OnceboxError(row.last_error)
    return None
