"""A drain that purges between its batches, as `oncebox run` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.drain import oncebox
from bench.drain.worker_pool import Drain
from oncebox.operations.maintenance import MaintenanceTask
from oncebox.operations.purge import SHARE, PurgeTask
from oncebox.storage.steps import run


@contextmanager
def open(url: str, batch: int) -> Iterator[Drain]:
    """Drain a batch, then run a step of the purge if it is due."""
    inbox = oncebox.inbox_for_batches(url)
    with oncebox.draining(inbox, batch) as drain:
        keeper = PurgeTask(
            inbox.purge, inbox._context, run(inbox._engine.connection.open_for_operation(False))
        )
        keeper._ask_at = 0.0  # it is time at once
        task = MaintenanceTask("purge", keeper.step, share=SHARE)

        def step() -> int:
            done = drain()
            if task.is_due(is_idle=not done):
                run(task.run())
            return done

        yield step
        keeper.stop()
