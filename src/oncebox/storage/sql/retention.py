"""Watermark and purge; shared by the SQL stores."""

from __future__ import annotations

from datetime import datetime

from oncebox.model.retention import RECENT, ArrivalProgress, PartitionProgress
from oncebox.storage.contract import Connection
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps

MANY = 10_000_001
"""The largest count of old messages."""


class SqlRetention(Dialect):
    """Watermark and purge."""

    def arrival_progress(self, connection: Connection, consumer: str) -> Steps[ArrivalProgress]:
        """When messages last arrived, and how old they were: from this a safe watermark follows."""
        params = {"consumer": consumer, **self._times()}
        last = yield from connection.fetch(self._sql["last_arrival"], params)
        received_at = self._moment(last[0][0]) if last else None
        produced_at = None
        if received_at is not None:
            since = {"consumer": consumer, "since": self._time_param(received_at - RECENT)}
            oldest = yield from connection.fetch(self._sql["oldest_arrival"], since)
            produced_at = self._moment(oldest[0][0])
        return ArrivalProgress(
            received_at, produced_at, (yield from self.partition_progress(connection, consumer))
        )

    def partition_progress(
        self, connection: Connection, consumer: str
    ) -> Steps[list[PartitionProgress]]:
        """The progress of every partition of every source."""
        params = {"consumer": consumer, **self._times()}
        partitions = yield from connection.fetch(self._sql["partition_progress"], params)
        return [
            PartitionProgress(name, lag, bool(alive), self._moment(seen), self._moment(moved))  # type: ignore[arg-type]
            for name, lag, alive, seen, moved in partitions
        ]

    def set_watermark(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[datetime]:
        """Move the watermark forward, and return it."""
        params = {"consumer": consumer, "watermark": self._time_param(watermark)}
        found = yield from connection.fetch(self._sql["set_watermark"], params)
        moment = self._moment(found[0][0])
        assert moment is not None
        return moment

    def count_old(self, connection: Connection, consumer: str, watermark: datetime) -> Steps[int]:
        """How many messages are older than a watermark."""
        params = {"consumer": consumer, "watermark": self._time_param(watermark), "limit": MANY}
        found = yield from connection.fetch(self._sql["count_old"], params)
        return int(found[0][0])

    def purge_counters(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[None]:
        """Delete old counters, and old failures of messages that were never claimed."""
        params = {"consumer": consumer, "watermark": self._time_param(watermark)}
        yield from connection.execute(self._sql["purge_failures"], params)
        yield from connection.execute(self._sql["purge_counters"], params)
