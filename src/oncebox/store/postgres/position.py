"""Positions on PostgreSQL."""

from __future__ import annotations

import msgspec

from oncebox.store.contract import (
    Advance,
    Connection,
    Position,
    Steps,
    Worker,
)
from oncebox.store.postgres.claim import Claiming
from oncebox.store.postgres.drain import named


class Positioned(Claiming):
    """How far sources were read, and by whom."""

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        params = {"consumer": consumer, "source": source}
        found = yield from connection.fetch(self._sql["positions"], params)
        return {row[0]: Position(*row) for row in found}

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
            **named(consumer, worker),
            "source": source,
            "part": position.part,
            "start": position.next,
            "mark": position.mark,
            "owner": worker.incarnation,
            "owner_name": worker.name,
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

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        params = {**msgspec.structs.asdict(step), "consumer": consumer}
        yield from connection.execute(self._sql["advance"], params)

    def hold_on(
        self, connection: Connection, consumer: str, source: str, worker: Worker
    ) -> Steps[None]:
        params = {**named(consumer, worker), "source": source, "owner": worker.incarnation}
        yield from connection.execute(self._sql["hold_on"], params)

    def let_go(
        self, connection: Connection, consumer: str, source: str, worker: Worker, part: str
    ) -> Steps[None]:
        params = {
            "consumer": consumer,
            "source": source,
            "part": part,
            "owner": worker.incarnation,
        }
        yield from connection.execute(self._sql["let_go"], params)
