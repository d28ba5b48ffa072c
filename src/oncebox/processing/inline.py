"""Inline processing: process() and receive(), with retries, and splits of a failing batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import CommittedByHandler, NotOwner, TransactionLost
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.processing.observer import report_commit
from oncebox.processing.plan import Plan
from oncebox.processing.routing import Item
from oncebox.processing.unit_of_work import Unit, perform
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import (
    CannotCommit,
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

    def process(
        self, items: Sequence[Item], *, failed: BaseException | None = None
    ) -> Steps[list[Outcome]]:
        """Process a batch. If one message makes the commit fail, only that message fails.

        With `failed`, no handler runs: the messages have failed with this error. If the database
        rejects every try, the messages are stored to run isolated.
        """
        if not items:
            return []
        unit = self.unit
        retries = Retries(self.database, unit.random, limit=unit.timeout)
        isolated: BaseException | None = None
        while True:
            plan = unit.plan(items, failed=failed, isolated=isolated, receiving=self.receiving)
            unit.observer.batch_started(unit.consumer, len(items))
            body = partial(perform, unit, plan, self.advance)
            try:
                outcomes = yield from with_connection(self.database, body)
            except CannotCommit as error:
                self._report_rollback(error.__cause__, "running its messages one by one")
                return (yield from self._divide(items, None, error.__cause__, failed))
            except TransactionLost as error:
                self._report_rollback(error, "running its messages one by one")
                plan.is_committing = False  # the guard refused our COMMIT
                if buried := (yield from self._bury_committed(plan)):
                    return (yield from self._process_others(items, buried))
                return (yield from self._divide(items, error.culprit, error, failed))
            except RetryTransaction as retry:
                cause = retry.__cause__
                if buried := (yield from self._bury_committed(plan)):
                    return (yield from self._process_others(items, buried))
                if isolated is not None:
                    raise database_unavailable(cause) from cause
                is_last = retries.are_used_up
                self._report_rollback(cause, "storing its messages" if is_last else "retrying it")
                if not (yield from retries.wait()):
                    isolated = cause
            except Exception as error:
                if error_codes.is_not_owner(error):
                    raise NotOwner from error
                raise
            else:
                report_commit(unit.observer, unit.consumer, outcomes)
                return outcomes

    def _report_rollback(self, error: BaseException | None, consequence: str) -> None:
        self.unit.observer.batch_rolled_back(self.unit.consumer, error, consequence)

    # -- batches that cannot be committed ---------------------------------------------------------

    def _divide(
        self,
        items: Sequence[Item],
        culprit: object | None,
        error: BaseException | None,
        failed: BaseException | None,
    ) -> Steps[list[Outcome]]:
        """Process a batch in parts, in arrival order, so that a failed part blocks its keys.

        `culprit` is the message that failed, if that is certain.
        """
        if failed is not None:  # no handler ran, so the fault is not in a message
            raise TransactionLost(
                "the connection did not keep one transaction open: it is in autocommit mode, or a "
                "pooler is in statement mode (pgbouncer: set pool_mode = transaction). Do not ack"
            ) from error
        if len(items) == 1:
            return (yield from self.process(items, failed=error))
        if culprit not in items:
            middle = len(items) // 2
            first = yield from self._without_advance().process(items[:middle])
            return first + (yield from self.process(items[middle:]))
        place = next(n for n, item in enumerate(items) if item is culprit)
        before = yield from self._without_advance().process(items[:place])
        after = items[place + 1 :]
        last = self._without_advance() if after else self
        at_fault = yield from last.process(items[place : place + 1], failed=error)
        return before + at_fault + (yield from self.process(after))

    def _without_advance(self) -> InlineProcessing:
        """The same for a part of a batch: only the last part advances the position."""
        if self.advance is None:
            return self
        unmoved = msgspec.structs.replace(self.advance, new=self.advance.old)
        return msgspec.structs.replace(self, advance=unmoved)

    # -- transactions that a handler committed ----------------------------------------------------

    def _bury_committed(self, plan: Plan) -> Steps[dict[Item, Outcome]]:
        """Make dead letters of the claims of a transaction that a handler committed.

        Nothing tells how much of their work is committed. Returns their outcomes.
        """
        if not plan.claimed or plan.is_committing:
            return {}
        bury = partial(self._bury, plan.claimed, plan.token)
        buried: dict[Item, Outcome] = yield from run_transaction(self.database, bury)
        report_commit(self.unit.observer, self.unit.consumer, list(buried.values()))
        return buried

    def _bury(
        self, claimed: Mapping[Item, int], token: Any, work: Work
    ) -> Steps[dict[Item, Outcome]]:
        store, consumer = self.unit.store, self.unit.consumer
        messages = [(i.message, seq) for i, seq in claimed.items() if i.message is not None]
        committed = yield from store.committed_claims(work, consumer, messages, token)
        items = [item for item, seq in claimed.items() if seq in committed]
        plan = self.unit.plan(items)
        plan.make_all_dead(claimed, CommittedByHandler())
        if items:
            yield from store.record(
                work, consumer, self.unit.worker, plan.entries, has_on_dead=self.unit.has_on_dead
            )
        return dict(zip(items, plan.outcomes, strict=True))

    def _process_others(
        self, items: Sequence[Item], buried: Mapping[Item, Outcome]
    ) -> Steps[list[Outcome]]:
        rest = yield from self.process([item for item in items if item not in buried])
        others = iter(rest)
        return [buried.get(item) or next(others) for item in items]
