"""Positions: how far sources were read, and by whom. The same on every database, but for time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncebox.store.contract import Connection, Steps
from oncebox.store.dialect import Dialect
from oncebox.store.records import Gauge, Position, Worker


class Positions(Dialect):
    """A store, as far as it keeps positions."""

    @abstractmethod
    def _until(self, patience: float) -> dict[str, Any]:
        """As _times(), and how long somebody need not be heard of."""

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
        worker: Worker,
        position: Position,
        *,
        any_owner: bool,
    ) -> Steps[Position | None]:
        params = {
            **_owned(consumer, source, position.part, worker),
            **self._until(worker.patience),
            "owner_name": worker.name,
            "batch": worker.batch,
            "start": position.next,
            "mark": position.mark,
            "any_owner": any_owner,
            "from": position.owner,
        }
        found = yield from connection.fetch(self._sql["take_over"], params)
        if not found:
            return None
        next_, mark, suspects = found[0]
        return Position(
            position.part, next_, mark, worker.incarnation, worker.name, worker.batch, suspects
        )

    def hold_on(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: Worker,
        gauges: Mapping[str, Gauge],
    ) -> Steps[None]:
        times = self._until(worker.patience)
        rows = [
            {**_owned(consumer, source, part, worker), **times, **msgspec.structs.asdict(gauge)}
            for part, gauge in gauges.items()
        ]
        yield from connection.execute_many(self._sql["hold_on"], rows)

    def let_go(
        self,
        connection: Connection,
        consumer: str,
        source: str,
        worker: Worker,
        part: str,
        *,
        ended: bool = False,
    ) -> Steps[None]:
        params = {**_owned(consumer, source, part, worker), "ended": ended}
        yield from connection.execute(self._sql["let_go"], params)


def _owned(consumer: str, source: str, part: str, worker: Worker) -> dict[str, Any]:
    return {"consumer": consumer, "source": source, "part": part, "owner": worker.incarnation}
