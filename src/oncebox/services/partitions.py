"""Ownership of partitions: which ones this consumer reads, from where, and its heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.brokers.contract import Batch, PartitionedSource
from oncebox.errors import NotOwner
from oncebox.inbox import Inbox
from oncebox.model.message import Delivery
from oncebox.model.position import Advance, Position, Skip
from oncebox.storage.drivers.contract import Database
from oncebox.storage.drivers.transactions import read, run_transaction
from oncebox.storage.records import WorkerInfo
from oncebox.storage.steps import Steps
from oncebox.storage.worker_identity import is_gone

SKIP_REASON = "deleted by the broker before they were read"


class Partitions:
    """The partitions of a source that one consumer reads.

    A partition has one owner at a time, whose heartbeats and position are in the database. Another
    consumer takes a partition over when its owner signs off or crashes.
    """

    def __init__(self, inbox: Inbox, source: PartitionedSource, worker: WorkerInfo) -> None:
        self.source = source
        self.own: dict[str, Position] = {}
        self.is_finished = False
        """True if no message can follow in any partition."""
        self._consumer = inbox.name
        self._store = inbox._context.store
        self._worker = worker

    # -- assignment -------------------------------------------------------------------------------

    def assign(self, database: Database) -> Steps[None]:
        """Release revoked partitions, take over free ones, and send heartbeats."""
        partitions = self.source.partitions()
        if self.source.features.assigns:
            yield from self._sign_off_and_release(
                database, [p for p in self.own if p not in partitions]
            )
        known = yield from self._positions(database)
        for partition in partitions:
            if partition not in self.own:
                yield from self._open(database, partition, known.get(partition))
        yield from self.heartbeat(database)
        if self.source.features.ends:
            self.is_finished = all(
                self.source.is_finished(p, self.own.get(p, known.get(p))) for p in partitions
            )

    def _positions(self, database: Database) -> Steps[dict[str, Position]]:
        return (
            yield from read(
                database,
                lambda work: self._store.positions(work, self._consumer, self.source.name),
            )
        )

    def _open(self, database: Database, partition: str, known: Position | None) -> Steps[None]:
        """Open a partition, unless it has another owner or no message can follow."""
        if known is not None and not self._can_take_over(known):
            return
        # A reader that crashed after its last commit still owns its partition: it is signed off
        # after the next one opened it.
        is_free = known is not None and known.owner is None
        if is_free and self.source.is_finished(partition, known):
            return
        start = known or self.source.start_position(partition)
        if start is None:
            return
        taken = yield from self._take_over(database, start)
        if taken is not None:
            self.own[partition] = taken
            self.source.open(taken)

    def _can_take_over(self, position: Position) -> bool:
        return self.source.features.assigns or _is_free(position, self._worker)

    def _take_over(self, database: Database, start: Position) -> Steps[Position | None]:
        return (
            yield from run_transaction(
                database,
                lambda work: self._store.take_over(
                    work,
                    self._consumer,
                    self.source.name,
                    self._worker,
                    start,
                    any_owner=self.source.features.assigns,
                ),
            )
        )

    def heartbeat(self, database: Database) -> Steps[None]:
        """Record that this consumer is alive, and how far behind it is."""
        if not self.own:
            return
        gauges = {partition: self.source.gauge(partition) for partition in self.own}
        yield from run_transaction(
            database,
            lambda work: self._store.heartbeat_partitions(
                work, self._consumer, self.source.name, self._worker, gauges
            ),
        )

    def _sign_off_and_release(self, database: Database, partitions: Sequence[str]) -> Steps[None]:
        """Sign off partitions and release them, also if the sign-off fails."""
        try:
            yield from self._sign_off(database, partitions)
        finally:
            for partition in partitions:
                self.own.pop(partition, None)
                self.source.release(partition)

    def sign_off(self, database: Database) -> Steps[None]:
        """Record that this consumer stops reading, so that its messages are not suspects."""
        yield from self._sign_off(database, list(self.own), ended=self.is_finished)

    def _sign_off(
        self, database: Database, partitions: Sequence[str], *, ended: bool = False
    ) -> Steps[None]:
        for partition in partitions:
            yield from run_transaction(
                database,
                lambda work, partition=partition: self._store.release_partition(  # type: ignore[misc]
                    work, self._consumer, self.source.name, self._worker, partition, ended=ended
                ),
            )

    # -- positions --------------------------------------------------------------------------------

    def drop(self, batch: Batch) -> None:
        """Stop reading the partition of a batch that was nacked."""
        self.own.pop(batch.partition, None)

    def with_suspects(self, batch: Batch) -> Sequence[Delivery]:
        """Return the deliveries, with those marked that a vanished reader had in flight.

        One of them may have crashed that reader, so each of them runs isolated.
        """
        count = self._suspects(batch)
        suspects = [msgspec.structs.replace(d, redelivered=True) for d in batch.deliveries[:count]]
        return [*suspects, *batch.deliveries[count:]] if suspects else batch.deliveries

    def advance(self, batch: Batch) -> Advance:
        """Return the step of the position that is committed with the batch."""
        return Advance(
            source=self.source.name,
            partition=batch.partition,
            owner=self._worker.incarnation,
            old=batch.old,
            new=batch.new,
            log_id=batch.log_id,
            suspects=self._suspects_after(batch),
            heartbeat_timeout=self._worker.heartbeat_timeout,
        )

    def advanced(self, batch: Batch) -> None:
        """Store the position after a batch that was committed."""
        if batch.partition in self.own:
            self.own[batch.partition] = msgspec.structs.replace(
                self.own[batch.partition],
                next=batch.new,
                log_id=batch.log_id,
                suspects=self._suspects_after(batch),
            )

    def _suspects(self, batch: Batch) -> int:
        return self.own[batch.partition].suspects if batch.partition in self.own else 0

    def _suspects_after(self, batch: Batch) -> int:
        return max(0, self._suspects(batch) - len(batch.deliveries))

    def skip(self, database: Database, batch: Batch) -> Steps[None]:
        """Move the position past messages that the broker deleted, and count them."""
        step = Skip(
            source=self.source.name,
            partition=batch.partition,
            owner=self._worker.incarnation,
            old=batch.old,
            new=batch.new,
            log_id=batch.log_id,
            count=batch.skipped,
            why=SKIP_REASON,
        )
        is_owner = yield from run_transaction(
            database, lambda work: self._store.skip(work, self._consumer, step)
        )
        if not is_owner:
            raise NotOwner

    def expect_crash(self, database: Database, batch: Batch) -> Steps[int]:
        """Record a crash before the next message is converted. Returns the crashes in a row."""
        place = self._place(batch)
        crashes = yield from run_transaction(
            database, lambda work: self._store.expect_crash(work, *place)
        )
        if crashes is None:
            raise NotOwner
        return crashes

    def undo_expected_crash(self, database: Database, batch: Batch) -> Steps[None]:
        """Remove the recorded crash: the conversion did not crash."""
        place = self._place(batch)
        yield from run_transaction(
            database, lambda work: self._store.undo_expected_crash(work, *place)
        )

    def _place(self, batch: Batch) -> tuple[str, str, WorkerInfo, Position]:
        at = Position(batch.partition, batch.old)
        return self._consumer, self.source.name, self._worker, at


def _is_free(position: Position, worker: WorkerInfo) -> bool:
    """True if no live worker owns the position."""
    if position.owner is None or position.owner == worker.incarnation or position.is_overdue:
        return True
    return is_gone(position.owner_name or "", position.owner)
