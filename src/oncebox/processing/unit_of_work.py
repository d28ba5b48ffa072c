"""The unit of work: claim, run handlers, record and commit a batch in one transaction.

If one of its functions raises, nothing of the batch is committed. After TransactionEnded, a handler
may have committed part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from oncebox.errors import OnceboxError, SwallowedError, TransactionEnded, TransactionLost
from oncebox.model.ordering import Ordering, runs
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.model.sequencing import Gaps
from oncebox.processing.around import Hook, surround
from oncebox.processing.handlers import check_result
from oncebox.processing.observer import Observer
from oncebox.processing.plan import Plan
from oncebox.processing.resequencing import claim_in_sequence
from oncebox.processing.routing import Item
from oncebox.storage.contract import Store
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Work
from oncebox.storage.drivers.transactions import CannotCommit
from oncebox.storage.records import Claims
from oncebox.storage.steps import Steps


class Unit(msgspec.Struct, frozen=True):
    """What all units of work of one worker of an inbox share."""

    consumer: str
    store: Store
    worker: str
    """The name of the worker, for counters and attempts."""
    transaction: Callable[..., Any]
    """The class of the handlers' `tx`: Transaction or AsyncTransaction."""
    around: Sequence[Hook]
    """What runs around each handler, the outermost first."""
    observer: Observer
    ordering: Ordering
    random: Callable[[], float]
    keep_payload: bool
    timeout: float
    """Seconds after which the database ends the transaction."""
    gaps: Gaps
    has_on_dead: bool
    """Whether dead letters are reported to on_dead hooks."""
    notify: bool
    """Whether listening workers are notified of stored messages."""

    def plan(self, items: Sequence[Item], **options: Any) -> Plan:
        """A plan for a batch, by the policies of the inbox."""
        return Plan(items, ordering=self.ordering, random=self.random, **options)


class Failure(msgspec.Struct, frozen=True):
    """Why the handlers of a chunk were rolled back to the savepoint."""

    error: Exception
    culprit: Item | None
    """The message that caused the error, if that is certain."""
    ran: Sequence[Item]
    """The messages that ran before the handler that raised."""
    duration: float


def perform(unit: Unit, plan: Plan, advance: Advance | None, work: Work) -> Steps[list[Outcome]]:
    """Claim, run, record and commit new deliveries. Returns their outcomes, now committed."""
    yield from work.begin(unit.timeout)
    if advance is not None:  # first, so that a reader which lost its partition stops here
        yield from unit.store.advance(work, unit.consumer, advance)
    claims = yield from _claim(unit, plan, work)
    runnable = plan.decide(claims)
    unit.store.guard(work, claims.token)
    if len(plan.items) == 1 and runnable:
        return (yield from _perform_one(unit, plan, runnable, work))
    yield from run_handlers(unit, work, plan, runnable)
    return (yield from record_and_commit(unit, work, plan, runnable))


def _perform_one(unit: Unit, plan: Plan, runnable: list[Item], work: Work) -> Steps[list[Outcome]]:
    """Run, record and commit a batch of one message without waiting for the handler's statements.

    If the commit shows that one of them failed, the message failed: there is no other one.
    """
    began = time.monotonic()
    yield from run_handlers(unit, work, plan, runnable, wait=False)
    try:
        return (yield from record_and_commit(unit, work, plan, runnable))
    except CannotCommit as failed:
        error = failed.__cause__
        assert error is not None
        if not (yield from work.rollback_deferred(error)):
            raise
    if error_codes.is_aborted(error):
        error = SwallowedError()
    plan.is_committing = False
    plan.fail(runnable[0], error, time.monotonic() - began)
    return (yield from record_and_commit(unit, work, plan, runnable))


def _claim(unit: Unit, plan: Plan, work: Work) -> Steps[Claims]:
    arrivals = plan.arrivals
    options: dict[str, Any] = {"keep_payload": unit.keep_payload, "timeout": unit.timeout}
    for arrival in arrivals:
        if arrival.message.sequence is not None:
            options |= {"gaps": unit.gaps, "receiving": plan.is_receiving}
            return claim_in_sequence(unit.store, work, unit.consumer, arrivals, **options)
    claim = unit.store.receive if plan.is_receiving else unit.store.claim
    return claim(work, unit.consumer, arrivals, **options)


def record_and_commit(
    unit: Unit, work: Work, plan: Plan, runnable: list[Item]
) -> Steps[list[Outcome]]:
    """Record the outcomes of a batch and commit."""
    try:
        yield from unit.store.record(
            work,
            unit.consumer,
            unit.worker,
            plan.entries,
            has_on_dead=unit.has_on_dead,
            notify=unit.notify,
        )
        plan.is_committing = True
        yield from work.commit()
    except Exception as error:
        if error_codes.is_guard_failure(error):
            raise TransactionEnded from error
        if not runnable or _ends_unit(work, error):
            raise
        raise CannotCommit from error
    return plan.outcomes


def run_handlers(
    unit: Unit, work: Work, plan: Plan, runnable: list[Item], *, wait: bool = True
) -> Steps[None]:
    """Run the handlers of a batch, all on one savepoint if none fails.

    After a failure, roll back to the savepoint. If it is not certain which message failed, run each
    half alone. The later messages of a failed message's key are blocked, the others run again.
    Without `wait`, an error of a pipelined statement may be raised as late as the commit.
    """
    started = time.monotonic()
    todo: list[list[Item] | tuple[Item, Failure]] = [runnable]
    while todo:
        chunk = todo.pop()
        if isinstance(chunk, tuple):
            culprit, failure = chunk
            plan.fail(culprit, failure.error, failure.duration)
            continue
        chunk = plan.unblocked(chunk)
        if plan.has_failures and time.monotonic() - started > unit.timeout / 2:
            plan.store_isolated(chunk)  # no time is left to find the messages that fail
            continue
        failed = yield from _attempt(unit, work, chunk, wait=wait)
        if failed is None:
            plan.done(chunk)
        elif failed.culprit is not None:
            # The messages that ran before it run again first: that keeps the order of each key.
            others = [item for item in chunk if item is not failed.culprit]
            ran = set(failed.ran)
            todo.append([item for item in others if item not in ran])
            todo.append((failed.culprit, failed))
            todo.append([item for item in others if item in ran])
        else:
            middle = len(chunk) // 2
            todo += [chunk[middle:], chunk[:middle]]


def _attempt(unit: Unit, work: Work, chunk: list[Item], *, wait: bool) -> Steps[Failure | None]:
    """Run the handlers of a chunk on a savepoint; roll back to it if one fails."""
    if not chunk:
        return None
    began = time.monotonic()
    ran: list[Item] = []
    call: list[Item] = []
    yield from work.enter_savepoint()
    try:
        for call in runs(chunk, attrgetter("key"), _batch_handler):
            yield from _call_handler(unit, work, call)
            ran += call
        call = []
        yield from work.release_savepoint(wait=wait)
    except TransactionLost as error:
        error.culprit = _only(call or chunk)
        raise
    except Exception as error:
        # In a pipeline, the guard may fail because of any handler of the chunk.
        if error_codes.is_guard_failure(error):
            ended = TransactionEnded()
            ended.culprit = _only(chunk)
            raise ended from error
        if _ends_unit(work, error) and not error_codes.is_busy(error):
            raise
        certain = yield from _roll_back(work, error)
        if error_codes.is_aborted(error):
            # A handler ignored an error, perhaps not the handler whose statement was refused.
            error, certain = SwallowedError(), False
        culprit = _only(call if certain and call else chunk)
        return Failure(error, culprit, ran, time.monotonic() - began)
    return None


def _only(items: Sequence[Item]) -> Item | None:
    """The item of a list of one; None for longer lists."""
    return items[0] if len(items) == 1 else None


def _roll_back(work: Work, error: Exception) -> Steps[bool]:
    """Roll back to the savepoint. Raises TransactionLost if the savepoint no longer exists."""
    try:
        return (yield from work.rollback_to_savepoint(error))
    except Exception as worse:
        if _ends_unit(work, worse):
            raise
        raise TransactionLost from worse


def _call_handler(unit: Unit, work: Work, call: list[Item]) -> Steps[None]:
    """Call the handler of one message, or the batch handler of several."""
    route = call[0].route
    assert route is not None
    handler = route.handler
    payload = [item.payload() for item in call] if handler.batch else call[0].payload()
    messages = [item.message for item in call]
    tx = unit.transaction(work, messages, is_batch=handler.batch)
    run = partial(handler.function, *((payload, tx) if handler.takes_tx else (payload,)))
    started = time.monotonic()
    try:
        result = yield surround(unit.around, tx, run) if unit.around else run
    except BaseException as error:
        with suppress(OnceboxError):
            tx._end()
        unit.observer.handler_finished(unit.consumer, messages, time.monotonic() - started, error)
        raise
    tx._end()
    unit.observer.handler_finished(unit.consumer, messages, time.monotonic() - started, None)
    if result is not None:
        check_result(handler, result)
    yield from work.after_handler()


def _ends_unit(work: Work, error: Exception) -> bool:
    """Whether the whole transaction must be rolled back, whatever message caused the error."""
    if isinstance(error, TransactionLost):
        return True
    return error_codes.is_retryable(error) or work.is_lost(error)


def _batch_handler(item: Item) -> object:
    assert item.route is not None
    return item.route.handler if item.route.handler.batch else None
