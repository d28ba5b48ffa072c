"""What the drain and the crash isolation share: one try to run messages that were stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from oncebox.errors import CommittedByHandler
from oncebox.model.outcome import Outcome, Reason
from oncebox.processing.handlers import Registry
from oncebox.processing.plan import Plan
from oncebox.processing.routing import read_stored
from oncebox.processing.unit_of_work import Unit
from oncebox.storage.drivers.contract import Database, Work
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import PendingMessage, WorkerInfo
from oncebox.storage.steps import Steps


class WorkerContext(msgspec.Struct, frozen=True):
    """What one worker needs to run stored messages."""

    database: Database
    unit: Unit
    registry: Registry
    worker: WorkerInfo


class Step(msgspec.Struct, frozen=True):
    """The result of one step of a drain."""

    outcomes: Sequence[Outcome] = ()
    idle: bool = False
    """Whether nothing was ready."""


class Try:
    """One try to run stored messages in a transaction: how far it got."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.taken: Sequence[PendingMessage] = ()
        """All messages of the lanes that are locked."""
        self.rows: Sequence[PendingMessage] = ()
        """The messages that run."""
        self.token: Any = None
        """Identifies the transaction for the store."""
        self.plan: Plan | None = None
        self.waits_for_key = False
        """Whether the handler has returned, and its transaction waits for the lock of its key."""

    @property
    def is_committing(self) -> bool:
        """Whether COMMIT was sent, so that the transaction may be committed."""
        return self.plan is not None and self.plan.is_committing


def bury_vanished(
    context: WorkerContext, rows: Sequence[PendingMessage], began: float
) -> Steps[list[Outcome]]:
    """Make dead letters of messages that a lost transaction removed from the queue.

    If they are gone, and no worker ran them since, a handler committed the transaction in a way
    that no guard noticed. Nothing tells how much of their work is committed: an operator decides.
    """
    if not rows:
        return []
    body = partial(_bury_vanished, context, rows, began)
    return (yield from run_transaction(context.database, body))


def _bury_vanished(
    context: WorkerContext, rows: Sequence[PendingMessage], began: float, work: Work
) -> Steps[list[Outcome]]:
    unit = context.unit
    within = time.monotonic() - began
    gone = yield from unit.store.find_vanished(work, unit.consumer, rows, within=within)
    if not gone:
        return []
    items = read_stored(gone, context.registry, decode=False)
    plan = unit.plan(items)
    plan.resume()
    for item in items:
        plan.make_dead(item, Reason.transaction_lost, CommittedByHandler())
    yield from unit.store.record(
        work, unit.consumer, unit.worker, plan.entries, has_on_dead=unit.has_on_dead
    )
    return plan.outcomes
