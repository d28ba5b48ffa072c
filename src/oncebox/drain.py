"""Drain: what was stored runs, in the order of its keys, whatever dies.

Messages come from lanes that are locked until the commit. They are taken out first, as a claim
takes a new message in; from there on it is the same unit of work. A message that may kill its
process runs alone: its death is recorded before it runs, and taken back when it did not die.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from oncebox import reports
from oncebox.alone import Alone, Risk, Step
from oncebox.aside import Aside
from oncebox.database import (
    PAUSES,
    UNGUARDED,
    Again,
    committed,
    once,
    seen,
    transact,
    unavailable,
)
from oncebox.database.contract import Work
from oncebox.errors import (
    DatabaseUnavailable,
    TransactionLost,
)
from oncebox.gaps import GapKeeper
from oncebox.hooks import Hook, Teller
from oncebox.outcome import Kind, Outcome
from oncebox.plan import cut, read_stored
from oncebox.replays import Feeder
from oncebox.store.contract import Steps
from oncebox.store.records import Stored
from oncebox.unit import CannotCommit

BRIEF = 0.2
"""Seconds that a unit may keep all other writers waiting, where it does."""

TURN_EVERY = 1.0
"""Seconds after which hooks and replays have their turn, however much there is to run."""


class Drain(Alone):
    """A worker's way through what was stored. One thread or task steps it at a time."""

    def __init__(
        self, *, hooks: Sequence[Hook] = (), sequenced: bool = False, **common: Any
    ) -> None:
        super().__init__(**common)
        self._limit = self.worker.batch
        self._woke = False
        self._seen_at = time.monotonic()
        self._taken: Sequence[Stored] = ()
        """What is in hands, and what was taken with it and left there: their lanes are locked."""
        self._teller = Teller(self.database, self._store, self._consumer, hooks)
        parts = (self.database, self._store, self._consumer)
        feeder = Feeder(*parts)
        self._gaps = GapKeeper(*parts, self._unit.gaps) if sequenced else None
        self._asides = [Aside(self._consumer, "replays", feeder.step)]
        if self._gaps is not None:
            self._asides.append(Aside(self._consumer, "gaps", self._gaps.step))
        self._turn_at = 0.0
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
        if self._gaps is not None:
            self._gaps.hurry()
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
            yield from self.pay()
        yield from self.sign_off()

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> Steps[Step]:
        """One unit of work on what is ready."""
        if self._debts:
            paid = Step((yield from self.pay()))
            reports.tell(self._consumer, paid.outcomes)
            return paid
        if time.monotonic() - self._seen_at > (self.worker.patience - self.worker.timeout) / 2:
            yield from committed(self.database, self._show)
        answer = yield from self._run()
        reports.tell(self._consumer, answer.outcomes)
        is_turn = time.monotonic() - self._turn_at > TURN_EVERY
        if (answer.idle or is_turn) and (yield from self._go_on()):
            answer = msgspec.structs.replace(answer, idle=False)
        if is_turn or self._is_over(answer):
            told = yield from self._teller.tell()
            self._turn_at = time.monotonic()
            self._is_busy = bool(told)
            return msgspec.structs.replace(answer, idle=answer.idle and not told)
        return answer

    def _go_on(self) -> Steps[bool]:
        """Let in some more: of replays, and of what waited for numbers."""
        done = False
        for aside in self._asides:
            done = (yield from aside.step()) or done
        return done

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
        for pause in PAUSES:
            self._taken = self._rows = ()
            self._token, self._began = None, time.monotonic()
            try:
                answer = yield from transact(self.database, self._once)
            except Again as again:
                reason = again.__cause__
                yield from self._forgive("it is run again", reason)
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
        if self._taken:
            with suppress(Again):  # then others are careful with them for nothing
                yield from once(
                    self.database,
                    lambda work: self._store.forgive(
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
        yield from work.begin()
        worker = msgspec.structs.replace(self.worker, batch=self._limit)
        wake, self._woke = not self._woke, False  # not twice in a row: others are ready too
        taken = yield from self._store.take(work, self._consumer, worker, wake=wake)
        self._woke = taken.again
        if taken.crashed:
            reports.logger.warning(
                "%s: a worker died; what it may have died of is run one by one", self._consumer
            )
        self._taken, rows = taken.rows, cut(taken.rows)
        if not rows:
            yield from work.commit(*UNGUARDED)
            return Step(idle=wake and not taken.again)
        self._rows, self._token = rows, taken.token
        careful = rows[0].alone
        items = read_stored(rows, self._registry, decode=not careful)
        plan = self._plan(items)
        if careful and items[0].route is not None:
            return (yield from self.risk(work, items[0], plan))
        yield from self._store.remove(work, rows)
        return Step((yield from self._conclude(work, plan, plan.resume())))
