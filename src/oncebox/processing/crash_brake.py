"""Crash brake: slows a worker down when many messages crash their processes."""

from __future__ import annotations

import time

from oncebox.processing.outcome_log import logger
from oncebox.processing.stored_batch import WorkerContext
from oncebox.storage.drivers.contract import Work
from oncebox.storage.steps import Steps

MANY_CRASHES = 5
"""Messages that crashed their process within ten minutes, from which on the worker slows down."""

LONGEST_REST = 60.0


class CrashBrake:
    """Delays the next isolated message, longer with each recent crash."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._rests_until: float | None = None

    def delay(self, work: Work) -> Steps[float]:
        """Seconds to wait before the next isolated message runs; 0 if it may run now."""
        crashes = yield from self._count(work)
        if crashes < MANY_CRASHES:
            self._rests_until = None
            return 0
        now = time.monotonic()
        if self._rests_until is None:
            rest = min(2.0 ** min(crashes - MANY_CRASHES, 10), LONGEST_REST)
            self._rests_until = now + rest
            logger.error(
                "%s: %d messages crashed their process within ten minutes, so the cause is "
                "probably not one message. This worker waits %.0f s before it runs the next "
                "isolated message; check the handlers and what they depend on",
                self._context.unit.consumer,
                crashes,
                rest,
            )
        if now < self._rests_until:
            return self._rests_until - now
        self._rests_until = None
        return 0

    def _count(self, work: Work) -> Steps[int]:
        store, consumer = self._context.unit.store, self._context.unit.consumer
        crashes = yield from store.count_crashes(work, consumer)
        if crashes >= MANY_CRASHES:  # an isolated message that runs now has not crashed
            worker = self._context.worker
            crashes -= yield from store.count_other_workers(work, consumer, worker)
        return crashes
