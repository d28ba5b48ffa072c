"""Crash isolation: runs a message alone if it may crash its process.

The crash is recorded and committed before the handler runs. If the process survives, the record is
undone. So a crash is counted although the process cannot count it any more.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial

import msgspec

from oncebox.errors import OnceboxError, ProcessCrashed, TooSlow, TransactionLost
from oncebox.model.error_text import describe
from oncebox.model.outcome import Outcome, Reason
from oncebox.model.retry import Retry
from oncebox.processing.crash_brake import CrashBrake
from oncebox.processing.outcome_log import error_name, logger
from oncebox.processing.plan import Plan
from oncebox.processing.routing import Item, read_stored
from oncebox.processing.stored_batch import Step, Try, WorkerContext, bury_vanished
from oncebox.processing.unit_of_work import record_and_commit, run_handlers
from oncebox.storage.drivers import error_codes
from oncebox.storage.drivers.contract import Work
from oncebox.storage.drivers.transactions import (
    CannotCommit,
    Retries,
    RetryTransaction,
    run_transaction,
    with_connection,
)
from oncebox.storage.records import PendingMessage
from oncebox.storage.steps import Steps

WAIT_FOR_OTHER = 0.2
"""Seconds that a message waits while another one runs isolated in this process."""

MIN_CRASHES = 3
"""Crashes in a row after which a message is a dead letter, even with fewer attempts in its policy:
its process may have been killed for another reason."""

_running_isolated = threading.Lock()
"""Held while a message runs isolated: two in one process could not be told apart after a crash."""

if hasattr(os, "register_at_fork"):  # a child process does not run what its parent runs
    os.register_at_fork(after_in_child=lambda: globals().update(_running_isolated=threading.Lock()))


class IsolatedMessage(msgspec.Struct, frozen=True):
    """A message whose crash is recorded in advance."""

    row: PendingMessage
    retry: Retry
    token: int
    """Identifies this run: a later run has another token."""


class UndoCrash(msgspec.Struct, frozen=True):
    """A crash recorded in advance that must be undone, because the process survived."""

    message: IsolatedMessage
    counted: bool
    """Whether the run counts as a failed attempt."""
    delay: float
    error: BaseException | None
    began: float = 0.0
    """When the run began, by the monotonic clock."""
    lost: bool = False
    """Whether its transaction ended in an unknown way, and may be committed."""


class CrashIsolation:
    """Runs the isolated messages of one worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._database = context.database
        self._unit = context.unit
        self._store = context.unit.store
        self._brake = CrashBrake(context)
        self._holds_lock = False
        self._current: IsolatedMessage | None = None
        """The message whose crash is recorded, until its run has a result."""
        self._undo: list[UndoCrash] = []

    @property
    def has_crashes_to_undo(self) -> bool:
        """Whether undo_crashes() has something to do."""
        return bool(self._undo)

    def prepare(self, work: Work, item: Item, plan: Plan) -> Steps[Step | IsolatedMessage]:
        """Record the crash of a message in advance, and commit.

        Returns a Step if the message does not run now: it crashed too often, or it has to wait.
        """
        assert item.stored is not None
        assert item.route is not None
        row, retry = item.stored, item.route.handler.retry
        if (end := _end_of(row, retry)) is not None:
            yield from self._store.remove(work, [row])
            plan.resume()
            plan.make_dead(item, *end)
            return Step((yield from record_and_commit(self._unit, work, plan, [])))
        rest = yield from self._brake.delay(work)
        if rest or not self._take_lock():
            yield from self._postpone(work, row, delay=rest or WAIT_FOR_OTHER)
            yield from work.commit()
            return Step()
        token = yield from self._postpone(
            work,
            row,
            delay=self._unit.timeout + self._backoff(retry, row.crashes),
            crash=ProcessCrashed(),
        )
        message = IsolatedMessage(row, retry, token)
        self._undo_current()
        yield from work.commit()
        self._current = message
        return message

    def _postpone(
        self,
        work: Work,
        row: PendingMessage,
        *,
        delay: float,
        crash: ProcessCrashed | None = None,
    ) -> Steps[int]:
        return self._store.postpone(
            work,
            self._unit.consumer,
            row,
            delay=delay,
            crashed=crash is not None,
            error=None if crash is None else str(crash),
        )

    def run(self, message: IsolatedMessage) -> Steps[Step]:
        """Run a prepared message. If this process survives, the recorded crash is undone."""
        retries = Retries(self._database, self._unit.random, limit=self._unit.timeout)
        error: BaseException | None
        lost = False
        while True:
            attempt = Try()
            try:
                outcomes = yield from with_connection(
                    self._database, partial(self._run_once, message, attempt, None)
                )
            except RetryTransaction as retry:
                error = retry.__cause__ or retry
                lost = lost or not attempt.is_committing
                if retries.is_too_slow:
                    error = TooSlow()
                elif error_codes.is_conflict(error) and (yield from retries.wait()):
                    continue
            except (CannotCommit, TransactionLost) as raised:
                error, lost = raised.__cause__ or raised, isinstance(raised, TransactionLost)
            else:
                if outcomes is not None:
                    self._current = None
                    return Step(outcomes)
                error = None
            return Step((yield from self._survive(message, attempt, error, lost=lost)))

    def _run_once(
        self, message: IsolatedMessage, attempt: Try, failed: BaseException | None, work: Work
    ) -> Steps[list[Outcome] | None]:
        """Take the message out of the queue and run it; None if another worker took it over."""
        unit = self._unit
        yield from work.begin(unit.timeout)
        taken = yield from self._store.take_isolated(work, message.row, message.token, unit.timeout)
        if taken is None:
            yield from work.commit()
            return None
        attempt.rows, attempt.token = taken.rows, taken.token
        plan = attempt.plan = unit.plan(
            read_stored(taken.rows, self._context.registry), failed=failed
        )
        runnable = plan.resume()
        self._store.guard(work, attempt.token)
        yield from run_handlers(unit, work, plan, runnable)
        # Recording needs the lock of the key. If that takes too long, another transaction is slow,
        # and the run of this message does not count as failed.
        attempt.waits_for_key = True
        yield from self._store.lock_key(work, unit.consumer, message.row.message.key)
        attempt.waits_for_key = False
        return (yield from record_and_commit(unit, work, plan, runnable))

    def _backoff(self, retry: Retry, failures: int) -> float:
        return retry.backoff(failures + 1, self._unit.random()).total_seconds()

    # -- one isolated message at a time in a process ----------------------------------------------

    def _take_lock(self) -> bool:
        """Whether no other message runs isolated in this process. Held until end()."""
        self._holds_lock = self._holds_lock or _running_isolated.acquire(blocking=False)
        return self._holds_lock

    def end(self) -> None:
        """End a run. If it has no result, its recorded crash is undone by the next step."""
        if self._holds_lock:
            self._holds_lock = False
            _running_isolated.release()
        self._undo_current()

    # -- undo recorded crashes --------------------------------------------------------------------

    def _undo_current(self) -> None:
        if self._current is not None:
            # First append: an interrupt in between must not lose the undo. Two are harmless.
            self._undo.append(UndoCrash(self._current, counted=False, delay=0, error=None))
            self._current = None

    def _survive(
        self, message: IsolatedMessage, attempt: Try, error: BaseException | None, *, lost: bool
    ) -> Steps[list[Outcome]]:
        """The process survived a run without a result: undo the recorded crash, now or later.

        A run that had begun counts as a failed attempt: otherwise a handler that breaks its
        connection would run forever.
        """
        logger.warning(
            "%s: isolated message %r did not finish (%s)",
            self._unit.consumer,
            message.row.message.id,
            "another worker took it over" if error is None else error_name(error),
        )
        delay = self._backoff(message.retry, message.row.attempts)
        counted = bool(attempt.rows) and not attempt.waits_for_key
        self._undo.append(UndoCrash(message, counted, delay, error, attempt.began, lost))
        self._current = None
        return (yield from self.undo_crashes())

    def undo_crashes(self) -> Steps[list[Outcome]]:
        """Undo recorded crashes. One whose transaction fails is kept for the next call."""
        outcomes: list[Outcome] = []
        while self._undo:
            outcomes += yield from self._undo_crash(self._undo[0])
            self._undo.pop(0)
        return outcomes

    def _undo_crash(self, undo: UndoCrash) -> Steps[list[Outcome]]:
        if undo.counted:
            with suppress(RetryTransaction):
                failed = yield from with_connection(
                    self._database, partial(self._run_once, undo.message, Try(), undo.error)
                )
                if failed is not None:
                    return failed
        # Otherwise another worker took the message over, or it is finished.
        yield from run_transaction(self._database, partial(self._store_undo, undo))
        if not undo.lost:
            return []
        return (yield from bury_vanished(self._context, [undo.message.row], undo.began))

    def _store_undo(self, undo: UndoCrash, work: Work) -> Steps[None]:
        return self._store.undo_crash(
            work,
            undo.message.row,
            undo.message.token,
            counted=undo.counted,
            delay=undo.delay,
            error=None if undo.error is None else describe(undo.error).line,
        )


def _end_of(row: PendingMessage, retry: Retry) -> tuple[Reason, OnceboxError] | None:
    """Why a message does not run any more: it crashed too often, or never finished."""
    if row.crashes >= max(retry.max_attempts, MIN_CRASHES):
        return Reason.crashed, ProcessCrashed()
    if row.attempts > retry.max_attempts:
        return Reason.out_of_attempts, OnceboxError(row.last_error)
    return None
