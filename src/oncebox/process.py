"""Process: units of work that are run again when the database asks for it, and split when they
cannot be committed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

import msgspec

from oncebox import reports
from oncebox.database import PAUSES, Again, faults, transact, unavailable
from oncebox.database.contract import Database
from oncebox.errors import NotOwner, TransactionLost
from oncebox.ordering import Order
from oncebox.outcome import Outcome
from oncebox.plan import Item, Plan
from oncebox.store.contract import Steps
from oncebox.store.records import Advance
from oncebox.unit import CannotCommit, Unit, perform


class Process(msgspec.Struct, frozen=True):
    """How an inbox processes a batch."""

    database: Database
    unit: Unit
    order: Order
    worker: str
    chance: random.Random
    receiving: bool = False
    """Nothing is run: everything is stored."""

    advance: Advance | None = None
    """The step of the position that a batch makes, where its source has positions."""

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
        first = yield from self._standing().batch(items[:middle], lost)
        return first + (yield from self.batch(items[middle:], lost))

    def _standing(self) -> Process:
        """For a part of a batch: only its last part moves the position on."""
        if self.advance is None:
            return self
        standing = msgspec.structs.replace(self.advance, new=self.advance.old)
        return msgspec.structs.replace(self, advance=standing)

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
        for pause in PAUSES:
            started = time.monotonic()
            try:
                return (yield from self._once(items, **fate))
            except Again as again:
                reason = again.__cause__
                fate.pop("lost", None)  # it may have been committed after all, by ourselves
                reports.logger.warning(
                    "%s: a batch was rolled back (%s); it is run again",
                    self.unit.consumer,
                    reports.name(again.__cause__),
                )
                if time.monotonic() - started >= self.unit.timeout:
                    break  # it would be as slow the next time
                yield partial(self.database.sleep, pause * (0.5 + self.chance.random()))
        try:
            return (yield from self._once(items, alone=reason, **fate))
        except Again as again:
            raise unavailable(again.__cause__) from again.__cause__

    def _once(self, items: Sequence[Item], **fate: Any) -> Steps[list[Outcome]]:
        """One unit of work on a connection of its own."""
        plan = Plan(
            items,
            order=self.order,
            chance=self.chance.random,
            receiving=self.receiving,
            **fate,
        )
        try:
            outcomes = yield from transact(
                self.database,
                lambda work: perform(self.unit, work, self.worker, plan, self.advance),
            )
        except CannotCommit as error:
            raise _Undone(frozenset()) from error.__cause__
        except TransactionLost as error:
            raise _Undone(plan.new) from error
        except Exception as error:
            if faults.sqlstate(error) == faults.NOT_OWNER:
                raise NotOwner from error
            raise
        reports.tell(self.unit.consumer, outcomes)
        return outcomes


class _Undone(Exception):
    """Nothing was committed, and its cause is the fault of one of the messages."""

    def __init__(self, new: Set[Item]) -> None:
        self.new = new
        """What the lost transaction had claimed; nothing where it was rolled back for certain."""
