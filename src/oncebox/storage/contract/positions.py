"""Positions: how far each partition of a source has been read, and by which worker."""

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
    """How far each partition of a source has been read, and by which worker."""

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        """The positions of a source by part."""
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
        """Become the owner of a part; None if somebody else was faster.

        `position` is where a part that was never read begins, and its owner the one who may be
        replaced; with `any_owner`, whoever it is. One that did not sign off leaves suspects.
        """
        ...

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        """Move a position on; fails if it has another owner, or moved, by now."""
        ...

    def heartbeat_partitions(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: WorkerInfo,
        gauges: Mapping[str, Gauge],
    ) -> Steps[None]:
        """The owner of these parts is alive, and sees them so."""
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
        """The owner of a part signs off; of one that has ended nothing is to come."""
        ...

    def skip(self, connection: Connection, consumer: str, step: Skip) -> Steps[bool]:
        """Move a position over messages that are gone, and count them; False if the position has
        another owner, or moved, by now."""
        ...

    def expect_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[int | None]:
        """Count a crash before the next message of a part is converted; returns how many there
        were in a row, with this one. None if the position has another owner, or moved, by now."""
        ...

    def undo_expected_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[None]:
        """The crash that was expected did not happen."""
        ...

    def report_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, why: str
    ) -> Steps[None]:
        """A worker cannot read its source."""
        ...

    def end_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo
    ) -> Steps[None]:
        """A worker reads its source again, or stops; also removes what dead workers left."""
        ...

    def partition_progress(
        self, connection: Connection, consumer: str
    ) -> Steps[list[PartitionProgress]]:
        """How the parts of sources stand."""
        ...
