"""Maintenance: background tasks that a worker runs between batches of messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.model.outcome import Kind
from oncebox.processing import outcome_log
from oncebox.processing.drain import Drain
from oncebox.storage.drivers.transactions import is_lock_timeout
from oncebox.storage.steps import Steps

INTERVAL = 1.0
"""Seconds between two runs of a task while the worker is busy."""

RETRY_AFTER = 60.0
"""Seconds until a failed task runs again."""


def _nothing() -> None: ...


class MaintenanceTask:
    """One background task of a worker.

    While messages are waiting, it runs once per `interval` seconds and takes at most `share` of the
    worker's time.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Steps[bool]],
        *,
        interval: float | None = None,
        share: float = 1.0,
        stop: Callable[[], None] = _nothing,
    ) -> None:
        self.name = name
        self.stop = stop
        """Stops what the task has begun; other workers continue it."""
        self._step = step
        self._interval = INTERVAL if interval is None else interval
        self._share = share
        self._next_at = 0.0

    def is_due(self, *, is_idle: bool) -> bool:
        """True if the task may run now. An idle worker runs it in every pause."""
        return is_idle or time.monotonic() >= self._next_at

    def run(self) -> Steps[bool]:
        """Run one step. Returns True if there was anything to do."""
        started = time.monotonic()
        done = yield from self._step()
        elapsed = time.monotonic() - started
        self._next_at = time.monotonic() + max(self._interval, elapsed * (1 / self._share - 1))
        return done


class Maintenance:
    """Runs the maintenance tasks of one worker. A failing task never delays messages."""

    def __init__(self, consumer: str, tasks: Sequence[MaintenanceTask]) -> None:
        self._consumer = consumer
        self._tasks = tasks
        self._failed_until: dict[MaintenanceTask, float] = {}

    def step(self, *, is_idle: bool) -> Steps[bool]:
        """Run the tasks that are due. Returns True if any of them had something to do."""
        any_done = False
        for task in self._tasks:
            if self._may_run(task) and task.is_due(is_idle=is_idle):
                any_done = (yield from self._run(task)) or any_done
        return any_done

    def stop(self) -> None:
        """Stop what the tasks have begun."""
        for task in self._tasks:
            task.stop()

    def _may_run(self, task: MaintenanceTask) -> bool:
        return time.monotonic() >= self._failed_until.get(task, 0.0)

    def _run(self, task: MaintenanceTask) -> Steps[bool]:
        try:
            return (yield from task.run())
        except Exception as error:
            if isinstance(error, OnceboxError) and not _is_lock_timeout(error):
                raise
            self._failed_until[task] = time.monotonic() + RETRY_AFTER
            outcome_log.logger.exception(
                "%s: maintenance task %s failed (%s); retrying in %.0f s, messages are still "
                "processed",
                self._consumer,
                task.name,
                outcome_log.error_name(error),
                RETRY_AFTER,
            )
            return False


def _is_lock_timeout(error: OnceboxError) -> bool:
    return isinstance(error, DatabaseUnavailable) and is_lock_timeout(error)


def drain_until_idle(drain: Drain, maintenance: Maintenance) -> Steps[Counter[Kind]]:
    """Run messages and maintenance until nothing is due. Returns the number of each outcome."""
    counts: Counter[Kind] = Counter()
    yield from drain.sign_on()
    try:
        is_idle = False
        while not is_idle:
            step = yield from drain.step()
            counts.update(outcome.kind for outcome in step.outcomes)
            is_idle = not (yield from maintenance.step(is_idle=step.idle)) and step.idle
    except GeneratorExit:  # no runner performs our calls any more
        raise
    except BaseException:
        yield from drain.leave()
        raise
    yield from drain.leave()
    return counts
