"""The maintenance tasks of a worker: replays, gaps, hooks and purge."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.operations.dead_letter_hooks import Hook, HookRunner
from oncebox.operations.gaps import GapSkipper
from oncebox.operations.maintenance import Maintenance, MaintenanceTask
from oncebox.operations.purge import Purge, purge_task
from oncebox.operations.replays import ReplayFeeder
from oncebox.processing.context import Context
from oncebox.storage.drivers.contract import Database


def worker_maintenance(
    context: Context,
    database: Database,
    *,
    on_dead: Sequence[Hook],
    purge: Purge,
    once: bool = False,
) -> Maintenance:
    """The maintenance of a worker. With `once`, for a single pass: gaps are not waited for, and
    nothing is purged."""
    parts = (database, context.store, context.consumer)
    tasks = [MaintenanceTask("replays", ReplayFeeder(*parts).step)]
    if context.identity.is_sequenced:
        gaps = GapSkipper(*parts, context.gaps)
        if once:
            gaps.hurry()
        tasks.append(MaintenanceTask("gaps", gaps.step))
    tasks.append(MaintenanceTask("hooks", HookRunner(*parts, on_dead).step))
    if not once:
        tasks.append(purge_task(purge, context, database))
    return Maintenance(context.consumer, tasks)
