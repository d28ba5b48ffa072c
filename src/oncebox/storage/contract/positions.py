"""Positions: how far each partition of a source has been read, and which worker reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from oncebox.model.position import Advance, Gauge, Position, Skip
from oncebox.model.retention import PartitionProgress
from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    WorkerInfo,
)
from oncebox.storage.steps import Steps


class PositionStore(Protocol):
    """How far each partition of a source has been read, and which worker reads it."""

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        """The positions of a source, by partition."""
        ...

    def take_over(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: WorkerInfo,
        position: Position,
        *,
        any_owner: bool,
    ) -> Steps[Position | None]:
        """Become the owner of a partition. Returns None if another worker was faster.

        `position` says where to start if the partition was never read. The takeover succeeds only
        if the partition still has the owner in `position`; with `any_owner`, whatever owner it has.
        If the old owner did not sign off, the messages it had in flight are suspects.
        """
        ...

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        """Move a position forward. Fails if it has another owner or was moved meanwhile."""
        ...

    def heartbeat_partitions(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: WorkerInfo,
        gauges: Mapping[str, Gauge],
    ) -> Steps[None]:
        """Record that the owner of these partitions is alive, and what it measured."""
        ...

    def release_partition(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: WorkerInfo,
        partition: str,
        *,
        ended: bool = False,
    ) -> Steps[None]:
        """Sign off as the owner of a partition. `ended`: no more messages come from it."""
        ...

    def skip(self, connection: Connection, consumer: str, step: Skip) -> Steps[bool]:
        """Move a position past messages that the source deleted, and count them.

        Returns False if the position has another owner or was moved meanwhile.
        """
        ...

    def expect_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[int | None]:
        """Count a crash before the next message of a partition is converted.

        Returns the number of crashes in a row, including this one. Returns None if the position has
        another owner or was moved meanwhile.
        """
        ...

    def undo_expected_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[None]:
        """Reset the crash count of a partition: the process survived the conversion."""
        ...

    def report_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, why: str
    ) -> Steps[None]:
        """Record that a worker cannot read its source."""
        ...

    def end_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo
    ) -> Steps[None]:
        """Record that a worker reads its source again, or stops.

        Also removes the records of crashed workers.
        """
        ...

    def partition_progress(
        self, connection: Connection, consumer: str
    ) -> Steps[list[PartitionProgress]]:
        """The progress of every partition of every source."""
        ...
