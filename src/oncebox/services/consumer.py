"""Consumer: reads a source, processes its deliveries with an inbox, and acks after the commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from oncebox.brokers.contract import Batch, PartitionedSource, QueueSource, SourceEnded
from oncebox.errors import ConfigurationError, DatabaseUnavailable, NotOwner
from oncebox.inbox import Inbox
from oncebox.model.message import Delivery
from oncebox.model.outcome import Outcome
from oncebox.model.position import Advance
from oncebox.processing import outcome_log as reports
from oncebox.services.loop import Loop
from oncebox.services.partitions import Partitions
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import run_transaction
from oncebox.storage.records import WorkerInfo
from oncebox.storage.steps import Call, Steps

T = TypeVar("T")

A_DAY = timedelta(days=1)

READ_TIMEOUT = 0.25
"""Seconds that one read of the source may wait, and therefore the longest delay of a stop."""

CHECK_EVERY = 1.0
"""Seconds between two checks of the assigned partitions and of the state of the source."""

EXTEND_EVERY = 5.0
"""Seconds between two extensions of the deliveries in flight during a database outage."""

CRASHES = 3
"""How often in a row the conversion of a message may crash the process before it is quarantined.
More than one, because the process may have ended for another reason."""


class Consumer(Loop):
    """Reads a source until it ends or stop() is called.

    `mode` is inline (handlers run at once) or stored (a worker runs them). Each partition, such as
    one file, has one reader at a time. Other consumers stand by, and take over when the reader
    crashes.
    """

    def __init__(
        self,
        inbox: Inbox,
        source: QueueSource,
        *,
        mode: Literal["inline", "stored"] = "inline",
        batch: int = 100,
    ) -> None:
        super().__init__()
        if mode not in ("inline", "stored"):
            raise ConfigurationError(f"mode must be 'inline' or 'stored', got {mode!r}")
        self._inbox = inbox
        self._source = source
        self._mode = mode
        self._batch = batch
        self._is_async = False
        self._partitions: Partitions | None = None
        self._in_flight: Batch | None = None
        self._extended_at = 0.0
        self._checked_at: float | None = None
        self._is_finished = False
        self._is_retention_compared = False
        self._is_outage_ended = False
        """True after outages of this worker and of crashed ones are removed from the database."""

    # -- the loop ---------------------------------------------------------------------------------

    def _service(self, *, is_async: bool) -> Steps[None]:
        self._is_async = is_async
        try:
            self._inbox._engine.registry.check_call(is_async, "Consumer(inbox, source)", "run()")
            with self._inbox._engine.worker(self._batch) as worker:
                if isinstance(self._source, PartitionedSource):
                    self._partitions = Partitions(self._inbox, self._source, worker)
                yield from self._serve(worker)
        finally:
            yield self._off_loop(self._source.close)

    def _serve(self, worker: WorkerInfo) -> Steps[None]:
        while not self.is_stopping and not self._is_finished:
            try:
                database = yield from self._inbox._context.open(self._is_async)
                yield from self._consume(database, worker)
            except DatabaseUnavailable as error:
                if not self.is_stopping:
                    yield from self._outage(self._inbox.name, error)

    def _consume(self, database: Database, worker: WorkerInfo) -> Steps[None]:
        while not self.is_stopping:
            yield from self._check(database, worker)
            batch = yield from self._read()
            self.beat()
            if batch is not None:
                yield from self._handle(database, batch)
            elif self._is_finished:
                break
            elif not self._source.features.assigns:
                self._checked_at = None  # it is idle, so another check costs nothing
        if self._partitions is not None:
            yield from self._partitions.heartbeat(database)
            yield from self._partitions.sign_off(database)
        yield from self._end_outage(database, worker)

    def _check(self, database: Database, worker: WorkerInfo) -> Steps[None]:
        """Assign partitions and report trouble of the source, about once a second."""
        if not self._is_check_due():
            return
        self._checked_at = None  # if it fails, nothing is read before the next check
        if self._partitions is not None:
            yield from self._partitions.assign(database)
            self._is_finished = self._partitions.is_finished
        yield from self._report_trouble(database, worker)
        self._reset_pause()
        self._checked_at = time.monotonic()
        if self._partitions is not None and self._partitions.own:
            yield from self._compare_retention(self._partitions.source)

    def _is_check_due(self) -> bool:
        if self._checked_at is None or time.monotonic() - self._checked_at >= CHECK_EVERY:
            return True
        return self._partitions is not None and self._partitions.source.is_reassigned()

    def _read(self) -> Steps[Batch | None]:
        try:
            batch: Batch | None = yield self._off_loop(
                partial(self._source.read, self._batch, READ_TIMEOUT)
            )
        except SourceEnded:
            self._is_finished = True
            return None
        return batch

    # -- a batch ----------------------------------------------------------------------------------

    def _handle(self, database: Database, batch: Batch) -> Steps[None]:
        """Process a batch and ack it, or nack it if it cannot be processed."""
        self._in_flight, self._extended_at = batch, time.monotonic()
        try:
            outcomes = yield from self._process(database, batch)
        except Exception as error:
            yield from self._nack(batch, error)
            if not isinstance(error, NotOwner):
                raise
            return
        finally:
            self._in_flight = None
        if self._partitions is not None:
            self._partitions.advanced(batch)
        yield self._off_loop(partial(self._source.ack, batch, outcomes))

    def _nack(self, batch: Batch, error: Exception) -> Steps[None]:
        yield self._off_loop(partial(self._source.nack, batch))
        if self._partitions is not None:
            self._partitions.drop(batch)
        if isinstance(error, NotOwner):
            reports.logger.warning(
                "%s: another worker reads %s of %s now; nothing was committed",
                self._inbox.name,
                batch.partition,
                self._source.name,
            )
        else:
            reports.logger.warning(
                "%s: returned %d deliveries without outcome to %s (%s); they are delivered again",
                self._inbox.name,
                len(batch.deliveries),
                self._source.name,
                reports.error_name(error.__cause__ or error),
            )

    def _process(self, database: Database, batch: Batch) -> Steps[list[Outcome]]:
        partitions = self._partitions
        if partitions is None:
            return (yield from self._commit(batch.deliveries, None))
        if batch.skipped:
            yield from self._retry_during_outage(partial(partitions.skip, database, batch))
        if batch.convert is not None:
            batch = yield from self._converted(database, partitions, batch, batch.convert)
        return (yield from self._commit(partitions.with_suspects(batch), partitions.advance(batch)))

    def _commit(
        self, deliveries: Sequence[Delivery], advance: Advance | None
    ) -> Steps[list[Outcome]]:
        process = partial(
            self._inbox._engine.process,
            self._is_async,
            deliveries,
            receiving=self._mode == "stored",
            advance=advance,
        )
        return (yield from self._retry_during_outage(process))

    def _converted(
        self,
        database: Database,
        partitions: Partitions,
        batch: Batch,
        convert: Callable[[], Sequence[Delivery]],
    ) -> Steps[Batch]:
        """Convert a message that may crash the process.

        The crash is recorded before the conversion, and removed after it. A message that crashes
        each time stays unconverted.
        """
        expect = partial(partitions.expect_crash, database, batch)
        crashes = yield from self._retry_during_outage(expect)
        if crashes > 1:
            self._log_crashes(batch, crashes - 1)
        if crashes > CRASHES:
            return batch
        deliveries = yield self._off_loop(convert)
        yield from self._retry_during_outage(
            partial(partitions.undo_expected_crash, database, batch)
        )
        return msgspec.structs.replace(batch, deliveries=deliveries)

    def _log_crashes(self, batch: Batch, crashes: int) -> None:
        reports.logger.error(
            "%s: the conversion of message %s of %s crashed the process %d times in a row; %s",
            self._inbox.name,
            batch.deliveries[0].coordinates,
            batch.deliveries[0].source,
            crashes,
            "it is quarantined" if crashes >= CRASHES else "it is tried again",
        )

    # -- outages ----------------------------------------------------------------------------------

    def _retry_during_outage(self, steps: Callable[[], Steps[T]]) -> Steps[T]:
        """Run the steps; during a database outage run them again until stop() is called."""
        while True:
            try:
                result = yield from steps()
                self._reset_pause()
                return result
            except DatabaseUnavailable as error:
                if self.is_stopping:
                    raise
                yield from self._outage(self._inbox.name, error)

    def _back_off(self, longest: float) -> Steps[None]:
        """Wait like every loop, and extend the deliveries in flight meanwhile."""
        self._pause = min(self._pause * 2, longest)
        until = time.monotonic() + self._pause
        while not self.is_stopping and (left := until - time.monotonic()) > 0:
            yield from self._extend()
            yield partial(self._wait, min(left, EXTEND_EVERY))

    def _extend(self) -> Steps[None]:
        if self._in_flight is None or time.monotonic() - self._extended_at < EXTEND_EVERY:
            return
        self._extended_at = time.monotonic()
        yield self._off_loop(partial(self._source.extend, self._in_flight))

    def _report_trouble(self, database: Database, worker: WorkerInfo) -> Steps[None]:
        """Report whether the source can be read: in the log, to the supervisor, to the database."""
        before, self._trouble = self._trouble, self._source.trouble()
        if self._trouble is None:
            if before is not None:
                reports.logger.info("%s: reads %s again", self._inbox.name, self._source.name)
            yield from self._end_outage(database, worker)
            return
        if before is None:
            reports.logger.error(
                "%s: cannot read %s: %s", self._inbox.name, self._source.name, self._trouble
            )
        self._is_outage_ended, why = False, self._trouble
        store, name, source = self._inbox._context.store, self._inbox.name, self._source.name
        yield from run_transaction(
            database, lambda work: store.report_outage(work, name, source, worker, why)
        )

    def _end_outage(self, database: Database, worker: WorkerInfo) -> Steps[None]:
        """Remove outages of this worker, and of those that crashed, from the database."""
        if self._is_outage_ended:
            return
        store, name, source = self._inbox._context.store, self._inbox.name, self._source.name
        yield from run_transaction(
            database, lambda work: store.end_outage(work, name, source, worker)
        )
        self._is_outage_ended = True

    # -- retention --------------------------------------------------------------------------------

    def _compare_retention(self, source: PartitionedSource) -> Steps[None]:
        """Warn once if the source keeps messages for longer than the inbox."""
        if self._is_retention_compared:
            return
        self._is_retention_compared = True
        kept: timedelta | None = yield self._off_loop(source.retention)
        retention = self._inbox.retention
        if kept is None or retention is None or kept <= retention.age:
            return
        reports.logger.warning(
            "%s: %s keeps messages %s, but this inbox purges them after %g days: a message that is "
            "delivered again later is quarantined as too late; set a longer Retention",
            self._inbox.name,
            source.name,
            "forever" if kept == timedelta.max else f"for {kept / A_DAY:g} days",
            retention.days,
        )

    def _off_loop(self, function: Callable[[], Any]) -> Call:
        """Return the call of a function that may block, off the event loop if there is one."""
        return self._blocking_call(function, self._is_async)
