"""The unit of work: claim, handle, record and commit a batch of messages in one transaction.

Written once, without I/O and without colour: it yields calls, and a runner performs them.
What it raises, nothing of it was committed.
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
from oncebox.model.ordering import runs
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.model.sequencing import A_MINUTE, Gaps
from oncebox.processing.handlers import check_answer
from oncebox.processing.plan import Item, Plan
from oncebox.processing.resequencing import take_in
from oncebox.storage.contract import Store
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Work
from oncebox.storage.steps import Steps


class Unit(msgspec.Struct, frozen=True):
    """What every unit of work of an inbox has in common."""

    consumer: str
    store: Store
    transaction: Callable[..., Any]
    """What handlers get: Transaction or AsyncTransaction."""
    keep_payload: bool
    timeout: float
    """Seconds after which the database ends a transaction that was left behind."""
    gaps: Gaps = A_MINUTE
    """What is done about numbers that do not come."""
    tell: bool = False
    """Whether somebody is to be told of dead letters."""
    notify: bool = False
    """Whether those who wait for stored messages get a hint."""


class CannotCommit(Exception):
    """The handlers ran, but their work cannot be committed: one of the messages is at fault."""


class Failure(msgspec.Struct, frozen=True):
    """Why a chunk was rolled back."""

    error: Exception
    culprit: Item | None
    """The message at fault, where that is certain."""
    ran: Sequence[Item]
    """What ran before the call that raised."""
    duration: float


def perform(
    unit: Unit, work: Work, worker: str, plan: Plan, advance: Advance | None = None
) -> Steps[list[Outcome]]:
    """Claim, run, record, commit. The outcomes are true once this returns."""
    yield from work.begin(unit.timeout)
    if advance is not None:  # first: a reader that lost its partition goes no further
        yield from unit.store.advance(work, unit.consumer, advance)
    claims = yield from take_in(
        unit.store,
        work,
        unit.consumer,
        plan.arrivals,
        gaps=unit.gaps,
        receiving=plan.is_receiving,
        keep_payload=unit.keep_payload,
        timeout=unit.timeout,
    )
    runnable = plan.decide(claims)
    return (yield from conclude(unit, work, worker, plan, runnable, claims.token))


def conclude(
    unit: Unit, work: Work, worker: str, plan: Plan, runnable: list[Item], token: Any
) -> Steps[list[Outcome]]:
    """Run what has been claimed, record, commit."""
    yield from run_all(unit, work, plan, runnable, token)
    return (yield from finish(unit, work, worker, plan, runnable, token))


def finish(
    unit: Unit, work: Work, worker: str, plan: Plan, runnable: list[Item], token: Any
) -> Steps[list[Outcome]]:
    """Record and commit what has run."""
    try:
        yield from unit.store.record(
            work, unit.consumer, worker, plan.entries, has_hooks=unit.tell, notify=unit.notify
        )
        plan.is_committing = True
        yield from work.commit(*unit.store.guard(token))
    except Exception as error:
        if error_codes.is_guard_failure(error):
            raise TransactionEnded from error
        if not runnable or _ends_unit(work, error):
            raise
        raise CannotCommit from error
    return plan.outcomes


def run_all(unit: Unit, work: Work, plan: Plan, runnable: list[Item], token: Any) -> Steps[None]:
    """Run the handlers, all at once if all goes well.

    When something fails, the work goes back to a savepoint. If the culprit is not certain the
    messages are halved until it is alone; the later messages of its key are parked, the others
    run again.
    """
    work.guard = unit.store.guard(token)
    started = time.monotonic()
    todo: list[list[Item] | tuple[Item, Failure]] = [runnable]
    while todo:
        chunk = todo.pop()
        if isinstance(chunk, tuple):
            culprit, failure = chunk
            plan.fail(culprit, failure.error, failure.duration)
            continue
        chunk = plan.unheld(chunk)
        if plan.has_failures and time.monotonic() - started > unit.timeout / 2:
            plan.store(chunk)  # no time left to find out who is well: each gets a run of its own
            continue
        failed = yield from attempt(unit, work, chunk)
        if failed is None:
            plan.done(chunk)
        elif failed.culprit is not None:
            # What ran before it runs again first, so that a key's messages stay in order.
            others = [item for item in chunk if item is not failed.culprit]
            ran = set(failed.ran)
            todo.append([item for item in others if item not in ran])
            todo.append((failed.culprit, failed))
            todo.append([item for item in others if item in ran])
        else:
            middle = len(chunk) // 2
            todo += [chunk[middle:], chunk[:middle]]


def attempt(unit: Unit, work: Work, chunk: list[Item]) -> Steps[Failure | None]:
    """Run the handlers of a chunk on top of a savepoint; on a failure, go back to it."""
    if not chunk:
        return None
    began = time.monotonic()
    ran: list[Item] = []
    call: list[Item] = []
    yield from work.enter_savepoint()
    try:
        for call in runs(chunk, attrgetter("key"), _list_of):
            yield from invoke(unit, work, call)
            ran += call
        call = []
        yield from work.release_savepoint()
    except TransactionLost as error:
        error.culprit = _only(call or chunk)
        raise
    except Exception as error:
        if error_codes.is_guard_failure(
            error
        ):  # in a pipeline, it may come from any handler of the chunk
            ended = TransactionEnded()
            ended.culprit = _only(chunk)
            raise ended from error
        if _ends_unit(work, error) and not error_codes.is_busy(error):
            raise
        certain = yield from _go_back(work, error)
        if error_codes.is_aborted(error):
            # Somebody swallowed an error, and perhaps not the one whose statement was refused.
            error, certain = SwallowedError(), False
        culprit = _only(call if certain and call else chunk)
        return Failure(error, culprit, ran, time.monotonic() - began)
    return None


def _only(items: Sequence[Item]) -> Item | None:
    """The one item of a list that has just one."""
    return items[0] if len(items) == 1 else None


def _go_back(work: Work, error: Exception) -> Steps[bool]:
    """Roll back to the savepoint; where that fails, the savepoint's transaction is gone."""
    try:
        return (yield from work.rollback_to_savepoint(error))
    except Exception as worse:
        if _ends_unit(work, worse):
            raise
        raise TransactionLost from worse


def invoke(unit: Unit, work: Work, call: list[Item]) -> Steps[None]:
    """Call the handler of one message, or the batch handler of several."""
    route = call[0].route
    assert route is not None
    handler = route.handler
    payload = [item.payload() for item in call] if handler.batch else call[0].payload()
    tx = unit.transaction(work, None if handler.batch else call[0].message)
    args = (payload, tx) if handler.takes_tx else (payload,)
    try:
        answer = yield partial(handler.function, *args)
    except BaseException:
        with suppress(OnceboxError):
            tx._end()
        raise
    tx._end()
    if answer is not None:
        check_answer(handler, answer)
    yield from work.after_handler()


def _ends_unit(work: Work, error: Exception) -> bool:
    """Whether the whole unit has to be rolled back, whoever is at fault."""
    if isinstance(error, TransactionLost):
        return True
    return error_codes.is_retryable(error) or work.is_lost(error)


def _list_of(item: Item) -> object:
    assert item.route is not None
    return item.route.handler if item.route.handler.batch else None
