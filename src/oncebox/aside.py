"""Aside: work beside that on messages. What fails there must not keep messages from running."""

from __future__ import annotations

import time
from collections.abc import Callable

from oncebox import reports
from oncebox.database import is_crowded
from oncebox.errors import DatabaseUnavailable, OnceboxError
from oncebox.store.contract import Steps

PAUSE = 60.0
"""Seconds until it is tried again."""


class Aside:
    """Work that is done a step at a time; one that fails is said, and tried again later."""

    def __init__(self, consumer: str, what: str, step: Callable[[], Steps[bool]]) -> None:
        self._consumer = consumer
        self._what = what
        self._step = step
        self._not_before = 0.0

    def step(self) -> Steps[bool]:
        """One step, if it is time; says whether anything was done."""
        if time.monotonic() < self._not_before:
            return False
        try:
            return (yield from self._step())
        except Exception as error:
            if isinstance(error, OnceboxError) and not _is_crowded(error):
                raise
            self._not_before = time.monotonic() + PAUSE
            reports.logger.exception(
                "%s: %s: this cannot go on (%s), and is tried again in %.0f seconds; messages run",
                self._consumer,
                self._what,
                reports.name(error),
                PAUSE,
            )
            return False


def _is_crowded(error: OnceboxError) -> bool:
    return isinstance(error, DatabaseUnavailable) and is_crowded(error)
