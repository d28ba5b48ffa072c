"""Engine: processes deliveries and makes drains, with the handlers and policies of one inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.model.message import Delivery, checked_deliveries
from oncebox.model.ordering import Ordering
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.processing.connection import InboxDatabase, WorkerSlots
from oncebox.processing.context import Context
from oncebox.processing.drain import Drain
from oncebox.processing.handlers import Registry
from oncebox.processing.inline import InlineProcessing
from oncebox.processing.observer import Observer
from oncebox.processing.routing import read_deliveries
from oncebox.processing.stored_batch import WorkerContext
from oncebox.processing.unit_of_work import Unit
from oncebox.storage.drivers.transaction import AsyncTransaction, Transaction
from oncebox.storage.records import WorkerInfo
from oncebox.storage.steps import Steps
from oncebox.storage.worker_identity import incarnation, worker_name


class Engine(msgspec.Struct, frozen=True):
    """Runs the handlers of an inbox, inline or for a worker."""

    context: Context
    connection: InboxDatabase
    registry: Registry
    observer: Observer
    ordering: Ordering
    random: Callable[[], float]
    timeout: float
    """Seconds after which the database ends a transaction."""
    has_on_dead: bool
    channel: str | None
    """The name under which stored messages are notified; None if they are not."""
    slots: WorkerSlots

    def process(
        self,
        is_async: bool,
        deliveries: Iterable[Delivery],
        *,
        receiving: bool = False,
        advance: Advance | None = None,
    ) -> Steps[list[Outcome]]:
        """Process deliveries, or receive them for a worker. `advance` moves a source's position."""
        self._check_use(is_async, "inbox", "receive()" if receiving else "process()")
        batch = checked_deliveries(deliveries)
        if not batch:
            return []
        database = yield from self.connection.open(is_async)
        items = read_deliveries(batch, self.context.identity, self.registry, decode=not receiving)
        slot = self.slots.take()
        try:
            unit = self._unit(is_async, worker_name(slot))
            inline = InlineProcessing(database, unit, receiving, advance)
            return (yield from inline.process(items))
        finally:
            self.slots.release(slot)

    def drain(
        self, is_async: bool, worker: WorkerInfo, *, owner: str = "inbox", call: str = "drain()"
    ) -> Steps[Drain]:
        """A drain of the stored messages, for a worker. Errors name the user's `owner.call`."""
        self._check_use(is_async, owner, call)
        database = yield from self.connection.open(is_async)
        unit = self._unit(is_async, worker.name)
        return Drain(WorkerContext(database, unit, self.registry, worker))

    @contextmanager
    def worker(self, batch: int) -> Iterator[WorkerInfo]:
        """A worker of this process, with a name that no other worker has inside the block."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ConfigurationError(
                f"batch must be a number of messages, at least 1, got {batch!r}"
            )
        slot = self.slots.take()
        try:
            yield WorkerInfo(
                name=worker_name(slot),
                incarnation=incarnation(),
                batch=batch,
                timeout=self.timeout,
                heartbeat_timeout=self.timeout + self.heartbeat_margin,
            )
        finally:
            self.slots.release(slot)

    @property
    def heartbeat_margin(self) -> float:
        """Seconds after a transaction's longest time until a heartbeat is overdue."""
        return min(20.0, self.timeout / 2)

    def _check_use(self, is_async: bool, owner: str, call: str) -> None:
        """Raise unless the handlers are complete, and sync or async as the call is."""
        self.registry.check_call(is_async, owner, call)
        if not self.registry.is_checked:
            self.registry.check(self.context.consumer)

    def _unit(self, is_async: bool, worker: str) -> Unit:
        context = self.context
        return Unit(
            context.consumer,
            context.store,
            worker,
            AsyncTransaction if is_async else Transaction,
            self.registry.around,
            self.observer,
            self.ordering,
            self.random,
            context.keep_payload,
            self.timeout,
            context.gaps,
            self.has_on_dead,
            self.channel is not None,
        )
