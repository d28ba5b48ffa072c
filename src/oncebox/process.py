"""Process: units of work that are run again when the database asks for it, and split when they
cannot be committed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

import msgspec

from oncebox.database import acquire, faults, give_up
from oncebox.database.contract import Database
from oncebox.errors import DatabaseUnavailable, TransactionLost
from oncebox.ordering import Order
from oncebox.outcome import Kind, Outcome
from oncebox.plan import Item, Plan
from oncebox.store.contract import Steps
from oncebox.unit import CannotCommit, Unit, perform

RERUNS = 3

logger = logging.getLogger("oncebox")


class Process(msgspec.Struct, frozen=True):
    """How an inbox processes a batch."""

    database: Database
    unit: Unit
    order: Order
    worker: str
    chance: random.Random

    def batch(self, items: Sequence[Item], lost: Set[Item] = frozenset()) -> Steps[list[Outcome]]:
        """Process a batch; a message that keeps the others from being committed is failed alone."""
        try:
            return (yield from self._persistently(items, lost=lost))
        except _Undone as undone:
            reason, lost = undone.__cause__, undone.new
        if len(items) == 1:
            return (yield from self._fail(items, lost, reason))
        # In arrival order: what the first half leaves unfinished, the second half finds waiting.
        middle = len(items) // 2
        first = yield from self.batch(items[:middle], lost)
        return first + (yield from self.batch(items[middle:], lost))

    def _fail(
        self, items: Sequence[Item], lost: Set[Item], reason: BaseException | None
    ) -> Steps[list[Outcome]]:
        """Record a failure, without running anything."""
        try:
            return (yield from self._persistently(items, lost=lost, failed=reason))
        except _Undone as undone:
            raise TransactionLost(
                "the connection does not keep a transaction together: is there a pooler in "
                "statement mode, or autocommit? Settle nothing"
            ) from undone.__cause__

    def _persistently(self, items: Sequence[Item], **fate: Any) -> Steps[list[Outcome]]:
        """Run the unit until the database lets it through, then store its messages instead."""
        reason: BaseException | None = None
        for rerun in range(RERUNS + 1):
            started = time.monotonic()
            try:
                return (yield from self._once(items, **fate))
            except _Again as again:
                reason = again.__cause__
                fate.pop("lost", None)  # it may have been committed after all, by ourselves
                logger.warning(
                    "%s: a batch was rolled back (%s); it is run again",
                    self.unit.consumer,
                    _name(again.__cause__),
                )
                if time.monotonic() - started >= self.unit.timeout:
                    break  # it would be as slow the next time
                pause = 0.05 * 4**rerun * (0.5 + self.chance.random())
                yield partial(self.database.sleep, pause)
        try:
            return (yield from self._once(items, alone=reason, **fate))
        except _Again as again:
            raise DatabaseUnavailable(
                f"{type(again.__cause__).__name__}: {again.__cause__}; "
                "nothing was committed, so settle nothing"
            ) from again.__cause__

    def _once(self, items: Sequence[Item], **fate: Any) -> Steps[list[Outcome]]:
        """One unit of work on a connection of its own."""
        plan = Plan(items, order=self.order, chance=self.chance.random, **fate)
        work = yield from acquire(self.database)
        try:
            outcomes = yield from perform(self.unit, work, self.worker, plan)
        except GeneratorExit:  # nobody performs our calls any more
            raise
        except BaseException as error:
            lost = work.is_lost(error)
            yield from give_up(self.database, work)
            if lost:
                yield from self.database.recover()
            if isinstance(error, Exception) and (lost or faults.needs_rerun(error)):
                raise _Again from error
            if isinstance(error, CannotCommit):
                raise _Undone(frozenset()) from error.__cause__
            if isinstance(error, TransactionLost):
                raise _Undone(plan.new) from error
            raise
        yield from self.database.release(work)
        self._tell(outcomes)
        return outcomes

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        """Log what somebody may have to look at. Never payloads, and no texts of errors."""
        for outcome in outcomes:
            if outcome.error is not None or outcome.reason is not None:
                message = outcome.message
                logger.warning(
                    "%s: %s %s (%s)",
                    self.unit.consumer,
                    f"message {message.id!r} of type {message.type!r}" if message else "a delivery",
                    _CONSEQUENCES[outcome.kind],
                    outcome.reason or _name(outcome.error),
                    extra={"oncebox_outcome": outcome.kind.value},
                )


_CONSEQUENCES = {
    Kind.failed: "failed and is stored for another attempt",
    Kind.stored: "could not be committed and is stored, to be run by itself",
    Kind.dead: "is a dead letter",
    Kind.quarantined: "is quarantined",
}


def _name(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    state = faults.sqlstate(error)
    return f"{type(error).__name__} {state}" if state else type(error).__name__


class _Again(Exception):
    """Nothing was committed; its cause says why, and running it again may help."""


class _Undone(Exception):
    """Nothing was committed, and its cause is the fault of one of the messages."""

    def __init__(self, new: Set[Item]) -> None:
        self.new = new
        """What the lost transaction had claimed; nothing where it was rolled back for certain."""
