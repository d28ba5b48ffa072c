"""Positions of sources; shared by the SQL stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncebox.model.position import Gauge, Position, Skip
from oncebox.storage.contract import Connection
from oncebox.storage.records import WorkerInfo
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps


class SqlPositions(Dialect):
    """How far each partition has been read, and which worker reads it."""

    @abstractmethod
    def _until(self, heartbeat_timeout: float) -> dict[str, Any]:
        """As _times(), and when the next heartbeat is due."""

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        params = {"consumer": consumer, "source": source, **self._times()}
        found = yield from connection.fetch(self._sql["positions"], params)
        return {row[0]: self._position(row) for row in found}

    def _position(self, row: Sequence[Any]) -> Position:
        values: list[Any] = [*row]
        values[7:] = bool(row[7]), self._moment(row[8])
        return Position(*values)

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
        params = {
            **_owned(consumer, source, position.partition, worker),
            **self._until(worker.heartbeat_timeout),
            "owner_name": worker.name,
            "batch": worker.batch,
            "start": position.next,
            "log_id": position.log_id,
            "any_owner": any_owner,
            "from": position.owner,
        }
        found = yield from connection.fetch(self._sql["take_over"], params)
        if not found:
            return None
        next_, log_id, suspects = found[0]
        return Position(
            position.partition,
            next_,
            log_id,
            worker.incarnation,
            worker.name,
            worker.batch,
            suspects,
        )

    def heartbeat_partitions(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: WorkerInfo,
        gauges: Mapping[str, Gauge],
    ) -> Steps[None]:
        times = self._until(worker.heartbeat_timeout)
        rows = [
            {
                **_owned(consumer, source, partition, worker),
                **times,
                **msgspec.structs.asdict(gauge),
            }
            for partition, gauge in gauges.items()
        ]
        yield from connection.execute_many(self._sql["heartbeat_partitions"], rows)

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
        params = {**_owned(consumer, source, partition, worker), "ended": ended}
        yield from connection.execute(self._sql["release_partition"], params)

    def skip(self, connection: Connection, consumer: str, step: Skip) -> Steps[bool]:
        params = {**msgspec.structs.asdict(step), "consumer": consumer, **self._times()}
        return bool((yield from connection.fetch(self._sql["skip"], params)))

    def expect_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[int | None]:
        params = {**_owned(consumer, source, at.partition, worker), "old": at.next}
        found = yield from connection.fetch(self._sql["expect_crash"], params)
        return int(found[0][0]) if found else None

    def undo_expected_crash(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, at: Position
    ) -> Steps[None]:
        params = {**_owned(consumer, source, at.partition, worker), "old": at.next}
        yield from connection.execute(self._sql["undo_expected_crash"], params)

    def report_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo, why: str
    ) -> Steps[None]:
        params = {"consumer": consumer, "source": source, "worker": worker.name, "why": why}
        times = {**self._times(), **self._until(worker.heartbeat_timeout)}
        yield from connection.execute(self._sql["report_outage"], {**params, **times})

    def end_outage(
        self, connection: Connection, consumer: str, source: str, worker: WorkerInfo
    ) -> Steps[None]:
        params = {"consumer": consumer, "source": source, "worker": worker.name}
        yield from connection.execute(self._sql["end_outage"], {**params, **self._times()})


def _owned(consumer: str, source: str, partition: str, worker: WorkerInfo) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "source": source,
        "partition": partition,
        "owner": worker.incarnation,
    }
