"""Process: units of work that are run again when the database asks for it, and split when they
cannot be committed."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import GuardFailed, NotOwner, TransactionLost
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.processing import outcome_log as reports
from oncebox.processing.plan import Item, Plan
from oncebox.processing.unit_of_work import CannotCommit, Unit, perform
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    RETRY_DELAYS,
    RetryTransaction,
    database_unavailable,
    run_transaction,
    with_connection,
)
from oncebox.storage.steps import Steps


class Process(msgspec.Struct, frozen=True):
    """How an inbox processes a batch."""

    database: Database
    unit: Unit
    ordering: Ordering
    worker: str
    chance: random.Random
    receiving: bool = False
    """Nothing is run: everything is stored."""

    advance: Advance | None = None
    """The step of the position that a batch makes, where its source has positions."""

    def batch(self, items: Sequence[Item]) -> Steps[list[Outcome]]:
        """Process a batch; a message that keeps the others from being committed is failed alone."""
        if not items:
            return []
        try:
            return (yield from self._persistently(items))
        except _Buried as raised:
            buried = raised.outcomes
        except _Undone as undone:
            return (yield from self._divide(items, undone))
        rest = yield from self.batch([item for item in items if item not in buried])
        others = iter(rest)
        return [buried.get(item) or next(others) for item in items]

    def _divide(self, items: Sequence[Item], undone: _Undone) -> Steps[list[Outcome]]:
        if len(items) == 1:
            return (yield from self._fail(items, undone.__cause__))
        return (yield from self._split(items, undone))

    def _split(self, items: Sequence[Item], undone: _Undone) -> Steps[list[Outcome]]:
        """Process a batch in parts, in arrival order: what one part leaves unfinished, the next
        part finds waiting."""
        if undone.culprit not in items:
            middle = len(items) // 2
            first = yield from self._standing().batch(items[:middle])
            return first + (yield from self.batch(items[middle:]))
        place = next(n for n, item in enumerate(items) if item is undone.culprit)
        isolated, after = items[place : place + 1], items[place + 1 :]
        before = yield from self._standing().batch(items[:place])
        last = self._standing() if after else self
        failed = yield from last._fail(isolated, undone.__cause__)
        return before + failed + (yield from self.batch(after))

    def _standing(self) -> Process:
        """For a part of a batch: only its last part moves the position on."""
        if self.advance is None:
            return self
        standing = msgspec.structs.replace(self.advance, new=self.advance.old)
        return msgspec.structs.replace(self, advance=standing)

    def _check_uncommitted(self, plan: Plan) -> Steps[None]:
        """Raise _Buried if a handler committed a transaction that we did not.

        Its claims are in the inbox. They become dead letters: it is unknown how much of their work
        is done.
        """
        if not plan.new or plan.is_committing:
            return
        bury = partial(self._bury, plan.new, plan.token)
        buried: dict[Item, Outcome] = yield from run_transaction(self.database, bury)
        reports.tell(self.unit.consumer, list(buried.values()))
        if buried:
            raise _Buried(buried)

    def _bury(self, new: Mapping[Item, int], token: Any, work: Work) -> Steps[dict[Item, Outcome]]:
        store, consumer = self.unit.store, self.unit.consumer
        claimed = [(item.message, seq) for item, seq in new.items() if item.message is not None]
        kept = yield from store.committed_claims(work, consumer, claimed, token)
        items = [item for item, seq in new.items() if seq in kept]
        plan = Plan(items, ordering=self.ordering, chance=self.chance.random)
        plan.bury_all(new, GuardFailed())
        if items:
            yield from store.record(
                work, consumer, self.worker, plan.entries, has_hooks=self.unit.tell
            )
        return dict(zip(items, plan.outcomes, strict=True))

    def _fail(self, items: Sequence[Item], reason: BaseException | None) -> Steps[list[Outcome]]:
        """Record a failure, without running anything."""
        try:
            return (yield from self._persistently(items, failed=reason))
        except _Undone as undone:
            raise TransactionLost(
                "the connection does not keep a transaction together: is there a pooler in "
                "statement mode, or autocommit? Settle nothing"
            ) from undone.__cause__

    def _persistently(self, items: Sequence[Item], **fate: Any) -> Steps[list[Outcome]]:
        """Run the unit until the database lets it through, then store its messages instead."""
        reason: BaseException | None = None
        for pause in RETRY_DELAYS:
            started = time.monotonic()
            try:
                return (yield from self._once(items, **fate))
            except RetryTransaction as again:
                reason = again.__cause__
                reports.logger.warning(
                    "%s: a batch was rolled back (%s); it is run again",
                    self.unit.consumer,
                    reports.name(again.__cause__),
                )
                if time.monotonic() - started >= self.unit.timeout:
                    break  # it would be as slow the next time
                yield partial(self.database.sleep, pause * (0.5 + self.chance.random()))
        try:
            return (yield from self._once(items, isolated=reason, **fate))
        except RetryTransaction as again:
            raise database_unavailable(again.__cause__) from again.__cause__

    def _once(self, items: Sequence[Item], **fate: Any) -> Steps[list[Outcome]]:
        """One unit of work on a connection of its own."""
        plan = Plan(
            items,
            ordering=self.ordering,
            chance=self.chance.random,
            receiving=self.receiving,
            **fate,
        )
        try:
            outcomes = yield from with_connection(
                self.database,
                lambda work: perform(self.unit, work, self.worker, plan, self.advance),
            )
        except CannotCommit as error:
            raise _Undone from error.__cause__
        except TransactionLost as error:
            plan.is_committing = False  # the guard refused our COMMIT
            yield from self._check_uncommitted(plan)
            raise _Undone(error.culprit) from error
        except RetryTransaction:
            yield from self._check_uncommitted(plan)
            raise
        except Exception as error:
            if error_codes.is_not_owner(error):
                raise NotOwner from error
            raise
        reports.tell(self.unit.consumer, outcomes)
        return outcomes


class _Buried(Exception):
    """A handler committed the transaction; these messages are dead letters now."""

    def __init__(self, outcomes: Mapping[Item, Outcome]) -> None:
        self.outcomes = outcomes


class _Undone(Exception):
    """Nothing was committed, and its cause is the fault of one of the messages."""

    def __init__(self, culprit: object | None = None) -> None:
        self.culprit = culprit
        """The message at fault, where that is certain."""
