"""Floors: keep polls fast while rows deleted long ago cannot be removed.

PostgreSQL keeps a deleted row in its indexes while any transaction has an older snapshot, such as
that of pg_dump. Every search for work visits all of them. While that is slow, a worker remembers
where it may begin.
"""

from __future__ import annotations

import time
from functools import partial

from oncebox.storage.contract import Store
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import NO_FLOORS, Floors, TakenBatch, WorkerInfo
from oncebox.storage.steps import Steps

IN_A_ROW = 3
"""Slow searches before a worker uses floors. Without an old snapshot only the first one is slow."""

RAISE_EVERY = 0.2
"""Seconds between two transactions that raise the floors."""

USE_FOR = 60.0
"""Seconds after which a worker searches from the beginning once, and sees whether that is slow."""


class SearchFloors:
    """The floors of one worker, in memory: unused while its searches are fast."""

    def __init__(self, database: Database, store: Store, consumer: str, worker: WorkerInfo) -> None:
        self._database = database
        self._store = store
        self._consumer = consumer
        self._worker = worker
        self._slow = 0
        self._known = NO_FLOORS
        self._raise_at = self._use_until = 0.0

    @property
    def floors(self) -> Floors:
        """What to pass to take()."""
        return self._known if self._is_active else NO_FLOORS

    @property
    def _is_active(self) -> bool:
        return self._slow >= IN_A_ROW

    def took(self, taken: TakenBatch) -> None:
        """Note whether a search was slow."""
        if not self._is_active:
            self._slow = self._slow + 1 if taken.is_slow else 0
            self._use_until = time.monotonic() + USE_FOR

    def step(self) -> Steps[None]:
        """Raise the floors, if they are used and it is time."""
        now = time.monotonic()
        if self._is_active and now >= self._use_until:
            self._slow = IN_A_ROW - 1
        if self._is_active and now >= self._raise_at:
            self._known = yield from run_transaction(self._database, self._raise)
            self._raise_at = time.monotonic() + RAISE_EVERY

    @property
    def _raise(self) -> partial[Steps[Floors]]:
        return partial(
            self._store.raise_floors,
            consumer=self._consumer,
            worker=self._worker,
            floors=self._known,
        )
