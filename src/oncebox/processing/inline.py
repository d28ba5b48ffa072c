"""Inline processing: process() and receive(), with retries, and splits of a failing batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import GuardFailed, NotOwner, TransactionLost
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.processing.observer import report_commit
from oncebox.processing.plan import Plan
from oncebox.processing.routing import Item
from oncebox.processing.unit_of_work import CannotCommit, Unit, perform
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    Retries,
    RetryTransaction,
    database_unavailable,
    run_transaction,
    with_connection,
)
from oncebox.storage.steps import Steps


class InlineProcessing(msgspec.Struct, frozen=True):
    """Processes one batch of deliveries."""

    database: Database
    unit: Unit
    receiving: bool = False
    """Whether messages are stored for a worker, and no handler runs."""
    advance: Advance | None = None
    """How the batch moves the position of its source, if the source has positions."""

    def process(self, items: Sequence[Item]) -> Steps[list[Outcome]]:
        """Process a batch. A message that prevents the commit of the others fails by itself."""
        if not items:
            return []
        try:
            return (yield from self._commit(items))
        except _Buried as raised:
            buried = raised.outcomes
        except _RolledBack as error:
            return (yield from self._divide(items, error))
        rest = yield from self.process([item for item in items if item not in buried])
        others = iter(rest)
        return [buried.get(item) or next(others) for item in items]

    def _commit(
        self, items: Sequence[Item], *, failed: BaseException | None = None
    ) -> Steps[list[Outcome]]:
        """Run the unit of work until it commits. After the last try, store its messages instead."""
        retries = Retries(self.database, self.unit.random, limit=self.unit.timeout)
        isolated: BaseException | None = None
        while True:
            plan = self.unit.plan(items, failed=failed, isolated=isolated, receiving=self.receiving)
            self.unit.observer.batch_started(self.unit.consumer, len(items))
            body = partial(perform, self.unit, plan, self.advance)
            try:
                outcomes = yield from with_connection(self.database, body)
            except CannotCommit as error:
                raise _RolledBack from error.__cause__
            except TransactionLost as error:
                plan.is_committing = False  # the guard refused our COMMIT
                yield from self._check_uncommitted(plan)
                raise _RolledBack(error.culprit) from error
            except RetryTransaction as retry:
                cause = retry.__cause__
                yield from self._check_uncommitted(plan)
                if isolated is not None:
                    raise database_unavailable(cause) from cause
                self.unit.observer.batch_rolled_back(self.unit.consumer, cause, "retrying it")
                if not (yield from retries.wait()):
                    isolated = cause
            except Exception as error:
                if error_codes.is_not_owner(error):
                    raise NotOwner from error
                raise
            else:
                report_commit(self.unit.observer, self.unit.consumer, outcomes)
                return outcomes

    # -- batches that cannot be committed ---------------------------------------------------------

    def _divide(self, items: Sequence[Item], error: _RolledBack) -> Steps[list[Outcome]]:
        """Process a batch in parts, in arrival order, so that a failed part blocks its keys."""
        if len(items) == 1:
            return (yield from self._fail(items, error.__cause__))
        if error.culprit not in items:
            middle = len(items) // 2
            first = yield from self._without_advance().process(items[:middle])
            return first + (yield from self.process(items[middle:]))
        place = next(n for n, item in enumerate(items) if item is error.culprit)
        culprit, after = items[place : place + 1], items[place + 1 :]
        before = yield from self._without_advance().process(items[:place])
        last = self._without_advance() if after else self
        failed = yield from last._fail(culprit, error.__cause__)
        return before + failed + (yield from self.process(after))

    def _without_advance(self) -> InlineProcessing:
        """The same for a part of a batch: only the last part advances the position."""
        if self.advance is None:
            return self
        unmoved = msgspec.structs.replace(self.advance, new=self.advance.old)
        return msgspec.structs.replace(self, advance=unmoved)

    def _fail(self, items: Sequence[Item], error: BaseException | None) -> Steps[list[Outcome]]:
        """Record that a message failed, without running its handler again."""
        try:
            return (yield from self._commit(items, failed=error))
        except _RolledBack as undone:
            raise TransactionLost(
                "the connection does not keep a transaction together: is there a pooler in "
                "statement mode, or autocommit? Do not ack"
            ) from undone.__cause__

    # -- transactions that a handler committed ----------------------------------------------------

    def _check_uncommitted(self, plan: Plan) -> Steps[None]:
        """Raise _Buried if a handler committed a transaction that we did not commit.

        Its claims are in the inbox. They become dead letters, because nothing tells how much of
        their work is committed.
        """
        if not plan.claimed or plan.is_committing:
            return
        bury = partial(self._bury, plan.claimed, plan.token)
        buried: dict[Item, Outcome] = yield from run_transaction(self.database, bury)
        report_commit(self.unit.observer, self.unit.consumer, list(buried.values()))
        if buried:
            raise _Buried(buried)

    def _bury(
        self, claimed: Mapping[Item, int], token: Any, work: Work
    ) -> Steps[dict[Item, Outcome]]:
        store, consumer = self.unit.store, self.unit.consumer
        messages = [(i.message, seq) for i, seq in claimed.items() if i.message is not None]
        committed = yield from store.committed_claims(work, consumer, messages, token)
        items = [item for item, seq in claimed.items() if seq in committed]
        plan = self.unit.plan(items)
        plan.make_all_dead(claimed, GuardFailed())
        if items:
            yield from store.record(
                work, consumer, self.unit.worker, plan.entries, has_hooks=self.unit.has_hooks
            )
        return dict(zip(items, plan.outcomes, strict=True))


class _Buried(Exception):
    """A handler committed the transaction; these messages are dead letters now."""

    def __init__(self, outcomes: Mapping[Item, Outcome]) -> None:
        self.outcomes = outcomes


class _RolledBack(Exception):
    """Nothing was committed, because one of the messages failed with the cause of this."""

    def __init__(self, culprit: object | None = None) -> None:
        self.culprit = culprit
        """The message that failed, if that is certain."""
