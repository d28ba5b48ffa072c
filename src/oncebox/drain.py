"""Drain: what was stored runs, in the order of its keys, whatever dies.

Messages come from lanes that are locked until the commit. They are taken out first, as a claim
takes a new message in; from there on it is the same unit of work. A message that may kill its
process runs alone: its death is recorded before it runs, and taken back when it did not die.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from oncebox import reports
from oncebox.database import (
    PAUSES,
    Again,
    committed,
    faults,
    seen,
    transact,
    unavailable,
)
from oncebox.database.contract import Database, Work
from oncebox.errors import (
    DatabaseUnavailable,
    GuardFailed,
    OnceboxError,
    ProcessDied,
    TooSlow,
    TransactionLost,
)
from oncebox.handlers import Registry
from oncebox.hooks import Hook, Teller
from oncebox.ordering import Order
from oncebox.outcome import Kind, Outcome, Reason, describe
from oncebox.plan import Item, Plan, cut, read_stored
from oncebox.retry import Retry
from oncebox.store.contract import Steps, Stored, Worker
from oncebox.unit import CannotCommit, Unit, conclude

UNGUARDED: tuple[str, Mapping[str, Any]] = ("SELECT 1", {})
"""Where no handler ran, nothing has to be guarded."""

BRIEF = 0.2
"""Seconds that a unit may keep all other writers waiting, where it does."""

BRAKE = 5
"""So many messages that killed their process lately are no accident any more."""

LONGEST_REST = 60.0

FEWEST_DEATHS = 3
"""Deaths in a row before a message is blamed for them, however few attempts it has: somebody may
have killed its process for reasons of his own."""

TELL_EVERY = 1.0
"""Seconds after which hooks have their turn, however much there is to run."""

_alone_here = threading.Lock()
"""Two messages that may kill their process do not run in one process at the same time."""

if hasattr(os, "register_at_fork"):  # a child has nothing to do with what its parent is at
    os.register_at_fork(after_in_child=lambda: globals().update(_alone_here=threading.Lock()))


class Step(msgspec.Struct, frozen=True):
    """What one step of a drain came to."""

    outcomes: Sequence[Outcome] = ()
    idle: bool = False
    """Nothing was ready."""


class _Risk(msgspec.Struct, frozen=True):
    """A message that may kill its process, and the token by which this run of it is known."""

    row: Stored
    retry: Retry
    token: int


class _Debt(msgspec.Struct, frozen=True):
    """A death that was recorded, and did not happen."""

    risk: _Risk
    counted: bool
    delay: float
    error: BaseException | None
    lost: bool = False
    """Its transaction was ended by somebody else: perhaps it was committed."""


class Drain:
    """A worker's way through what was stored. One thread or task steps it at a time."""

    def __init__(
        self,
        *,
        database: Database,
        unit: Unit,
        registry: Registry,
        order: Order,
        worker: Worker,
        chance: random.Random,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.database = database
        self.worker = worker
        self._unit = unit
        self._store = unit.store
        self._consumer = unit.consumer
        self._registry = registry
        self._order = order
        self._chance = chance
        self._limit = worker.batch
        self._rows: Sequence[Stored] = ()
        """What is in hands, and the token of its transaction."""
        self._token: Any = None
        self._debts: list[_Debt] = []
        self._woke = False
        self._is_alone = False
        self._risked: _Risk | None = None
        self._runs_alone_at: float | None = None
        self._seen_at = time.monotonic()
        self._teller = Teller(database, unit.store, unit.consumer, hooks)
        self._told_at = 0.0
        self._is_busy = True

    # -- coming and going -------------------------------------------------------------------------

    def sign_on(self) -> Steps[None]:
        """Begin: from here on an end without sign_off() means that the process died."""
        yield from committed(self.database, self._show)

    def sign_off(self) -> Steps[None]:
        """Stop cleanly. If the database is away it looks as if we had died, which is harmless."""
        with suppress(DatabaseUnavailable):
            yield from committed(
                self.database,
                lambda work: self._store.sign_off(work, self._consumer, self.worker),
            )

    def _show(self, work: Work) -> Steps[None]:
        """Say that we are alive; and end what was left behind by those who are not."""
        yield from self._store.sign_on(work, self._consumer, self.worker)
        yield from self._store.end_overdue(work)
        self._seen_at = time.monotonic()

    def all(self) -> Steps[Counter[Kind]]:
        """Step until nothing is due; says how many had which outcome."""
        counts: Counter[Kind] = Counter()
        yield from self.sign_on()
        try:
            while not (step := (yield from self.step())).idle:
                counts.update(outcome.kind for outcome in step.outcomes)
        except GeneratorExit:  # nobody performs our calls any more
            raise
        except BaseException:
            yield from self.leave()
            raise
        yield from self.leave()
        return counts

    def leave(self) -> Steps[None]:
        """Stop cleanly, also in the middle of something: nobody died."""
        with suppress(DatabaseUnavailable):
            yield from self._pay()
        yield from self.sign_off()

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> Steps[Step]:
        """One unit of work on what is ready."""
        if self._debts:
            paid = Step((yield from self._pay()))
            reports.tell(self._consumer, paid.outcomes)
            return paid
        if time.monotonic() - self._seen_at > (self.worker.patience - self.worker.timeout) / 2:
            yield from committed(self.database, self._show)
        answer = yield from self._run()
        reports.tell(self._consumer, answer.outcomes)
        if time.monotonic() - self._told_at > TELL_EVERY or self._is_over(answer):
            told = yield from self._teller.tell()
            self._told_at = time.monotonic()
            self._is_busy = bool(told)
            return msgspec.structs.replace(answer, idle=answer.idle and not told)
        return answer

    def _is_over(self, step: Step) -> bool:
        """Whether what there was to do has just been done: then hooks have their turn at once."""
        was_busy, self._is_busy = self._is_busy, not step.idle
        return step.idle and was_busy

    def _run(self) -> Steps[Step]:
        if self._store.is_exclusive:  # look first: to begin keeps everybody else from writing
            look = partial(self._store.is_work, consumer=self._consumer)
            if not (yield from seen(self.database, look)):
                return Step(idle=True)
        self._risked = None
        try:
            answer = yield from self._persistently()
            if isinstance(answer, _Risk):
                answer = yield from self._run_alone(answer)
            self._risked = None
            return answer
        except BaseException:
            if self._risked is not None:  # its death is recorded, and we are alive
                self._debts.append(_Debt(self._risked, counted=False, delay=0, error=None))
            raise
        finally:
            self._leave_alone()

    def _leave_alone(self) -> None:
        if self._is_alone:
            self._is_alone = False
            _alone_here.release()

    def _persistently(self) -> Steps[Step | _Risk]:
        """Run units until one goes through; what cannot be committed runs alone from then on."""
        reason: BaseException | None = None
        buried: list[Outcome] = []
        for pause in PAUSES:
            self._rows, self._token = (), None
            started = time.monotonic()
            try:
                answer = yield from transact(self.database, self._once)
            except Again as again:
                reason = again.__cause__
                yield from self._forgive("it is run again", reason)
                if time.monotonic() - started >= self._unit.timeout:
                    break  # it would be as slow the next time
                yield partial(self.database.sleep, pause * (0.5 + self._chance.random()))
            except (CannotCommit, TransactionLost) as error:
                reason = error.__cause__ or error
                yield from self._forgive("its messages are run one by one", reason)
                if isinstance(error, TransactionLost):
                    buried = yield from self._look_for(self._rows)
                break
            else:
                self._adapt(time.monotonic() - started)
                return answer
        if not self._rows:
            raise unavailable(reason) from reason
        yield from committed(self.database, lambda work: self._store.suspect(work, self._rows))
        return Step(buried)

    def _forgive(self, consequence: str, reason: BaseException | None) -> Steps[None]:
        """We rolled back, and are alive: that must not look like a death."""
        reports.logger.warning(
            "%s: a batch was rolled back (%s); %s",
            self._consumer,
            reports.name(reason),
            consequence,
        )
        if not self._rows:
            return
        try:
            yield from committed(
                self.database,
                lambda work: self._store.forgive(work, self._consumer, self._rows, self._token),
            )
        except Exception as error:
            if faults.sqlstate(error) != faults.LOCKED:
                raise

    def _look_for(self, rows: Sequence[Stored]) -> Steps[list[Outcome]]:
        """After a transaction that got lost: if it took its messages along, a handler committed it
        past every guard. Nobody knows what of their work is done: that is for somebody to see."""
        if not rows:
            return []
        return (yield from committed(self.database, partial(self._bury_vanished, rows)))

    def _bury_vanished(self, rows: Sequence[Stored], work: Work) -> Steps[list[Outcome]]:
        gone = yield from self._store.vanished(work, self._consumer, rows)
        items = read_stored(gone, self._registry, decode=False)
        plan = self._plan(items)
        plan.resume()
        for item in items:
            plan.kill(item, Reason.lost, GuardFailed())
        yield from self._store.record(
            work, self._consumer, self.worker.name, plan.entries, tell=self._unit.tell
        )
        return plan.outcomes

    def _adapt(self, elapsed: float) -> None:
        """Where a unit keeps all others waiting, its size follows the time that it takes."""
        if self._store.is_exclusive:
            grown = self._limit * 2 if elapsed < BRIEF / 2 else self._limit
            wanted = self._limit // 2 if elapsed > BRIEF else grown
            self._limit = max(1, min(wanted, self.worker.batch))

    def _once(self, work: Work) -> Steps[Step | _Risk]:
        """Take what is ready, run it, record, commit."""
        yield from work.begin()
        worker = msgspec.structs.replace(self.worker, batch=self._limit)
        wake, self._woke = not self._woke, False  # not twice in a row: others are ready too
        taken = yield from self._store.take(work, self._consumer, worker, wake=wake)
        self._woke = taken.again
        if taken.crashed:
            reports.logger.warning(
                "%s: a worker died; what it may have died of is run one by one", self._consumer
            )
        rows = cut(taken.rows)
        if not rows:
            yield from work.commit(*UNGUARDED)
            return Step(idle=not taken.again)
        self._rows, self._token = rows, taken.token
        careful = rows[0].alone
        items = read_stored(rows, self._registry, decode=not careful)
        plan = self._plan(items)
        if careful and items[0].route is not None:
            return (yield from self._risk(work, items[0], plan))
        yield from self._store.remove(work, rows)
        return Step((yield from self._conclude(work, plan, plan.resume())))

    def _plan(self, items: list[Item], **fate: Any) -> Plan:
        return Plan(items, order=self._order, chance=self._chance.random, **fate)

    def _conclude(self, work: Work, plan: Plan, runnable: list[Item]) -> Steps[list[Outcome]]:
        name = self.worker.name
        return (yield from conclude(self._unit, work, name, plan, runnable, self._token))

    # -- alone ------------------------------------------------------------------------------------

    def _risk(self, work: Work, item: Item, plan: Plan) -> Steps[Step | _Risk]:
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
            yield from self._store.put_off(work, self._consumer, row, delay=rest or BRIEF)
            yield from work.commit(*UNGUARDED)
            return Step()
        token = yield from self._store.put_off(
            work,
            self._consumer,
            row,
            delay=self._unit.timeout + self._backoff(retry, row.deaths),
            died=True,
            error=str(ProcessDied()),
        )
        yield from work.commit(*UNGUARDED)
        self._risked = _Risk(row, retry, token)
        return self._risked

    def _be_alone(self) -> bool:
        """Whether no other message that may kill runs in this process, nor will until we leave."""
        self._is_alone = self._is_alone or _alone_here.acquire(blocking=False)
        return self._is_alone

    def _brake(self, work: Work) -> Steps[float]:
        """Seconds to put a message off where one after the other kills its process."""
        deaths = yield from self._store.count_deaths(work, self._consumer)
        if deaths >= BRAKE:  # those that run at the moment are no deaths yet
            deaths -= yield from self._store.others(work, self._consumer, self.worker)
        if deaths < BRAKE:
            self._runs_alone_at = None
            return 0
        now = time.monotonic()
        if self._runs_alone_at is None:
            rest = min(2.0 ** min(deaths - BRAKE, 10), LONGEST_REST)
            self._runs_alone_at = now + rest
            reports.logger.error(
                "%s: %d messages have killed their process lately, so it is hardly about one of "
                "them: the drain slows down, and this worker runs the next suspect in %.0f "
                "seconds; look at the handlers, and at what they need",
                self._consumer,
                deaths,
                rest,
            )
        if now < self._runs_alone_at:
            return self._runs_alone_at - now
        self._runs_alone_at = None
        return 0

    def _run_alone(self, risk: _Risk) -> Steps[Step]:
        """Run it by itself; its death is taken back if it does not die."""
        reason: BaseException | None = None
        lost = False
        for pause in PAUSES:
            started = time.monotonic()
            self._rows = ()
            try:
                outcomes = yield from transact(self.database, lambda work: self._alone(work, risk))
            except Again as again:
                reason = again.__cause__ or again
                slow = time.monotonic() - started >= self._unit.timeout
                if slow or not faults.is_conflict(reason):
                    return (yield from self._owe(risk, TooSlow() if slow else reason))
                yield partial(self.database.sleep, pause * (0.5 + self._chance.random()))
            except (CannotCommit, TransactionLost) as error:
                reason, lost = error.__cause__ or error, isinstance(error, TransactionLost)
                break
            else:
                if outcomes is None:
                    return (yield from self._owe(risk, None))
                return Step(outcomes)
        return (yield from self._owe(risk, reason, lost=lost))

    def _alone(self, work: Work, risk: _Risk, **fate: Any) -> Steps[list[Outcome] | None]:
        """Take it out and run it; None if somebody overtook us."""
        yield from work.begin()
        taken = yield from self._store.take_alone(work, risk.row, risk.token, self._unit.timeout)
        if taken is None:
            yield from work.commit(*UNGUARDED)
            return None
        self._rows, self._token = taken.rows, taken.token
        plan = self._plan(read_stored(taken.rows, self._registry), **fate)
        return (yield from self._conclude(work, plan, plan.resume()))

    def _backoff(self, retry: Retry, failures: int) -> float:
        return retry.backoff(failures + 1, self._chance.random()).total_seconds()

    # -- debts ------------------------------------------------------------------------------------

    def _owe(self, risk: _Risk, error: BaseException | None, *, lost: bool = False) -> Steps[Step]:
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
        self._debts.append(_Debt(risk, bool(self._rows), delay, error, lost))
        self._risked = None
        return Step((yield from self._pay()))

    def _pay(self) -> Steps[list[Outcome]]:
        """Take back deaths that did not happen; what the database does not let through is kept."""
        outcomes: list[Outcome] = []
        while self._debts:
            outcomes += yield from self._pay_one(self._debts[0])
            self._debts.pop(0)
        return outcomes

    def _pay_one(self, debt: _Debt) -> Steps[list[Outcome]]:
        if debt.counted:
            with suppress(Again):
                failed = yield from transact(
                    self.database, partial(self._alone, risk=debt.risk, failed=debt.error)
                )
                if failed is not None:
                    return failed
        # It is somebody else's by now, or gone.
        yield from committed(self.database, partial(self._absolve, debt))
        return (yield from self._look_for([debt.risk.row])) if debt.lost else []

    def _absolve(self, debt: _Debt, work: Work) -> Steps[None]:
        yield from self._store.absolve(
            work,
            debt.risk.row,
            debt.risk.token,
            counted=debt.counted,
            delay=debt.delay,
            error=None if debt.error is None else describe(debt.error).line,
        )


def _fate(row: Stored, retry: Retry) -> tuple[Reason, OnceboxError] | None:
    """Why a message is not run any more: it killed often enough, or never came to its end."""
    if row.deaths >= max(retry.max_attempts, FEWEST_DEATHS):
        return Reason.killed, ProcessDied()
    if row.attempts > retry.max_attempts:
        return Reason.out_of_attempts, OnceboxError(row.last_error)
    return None
