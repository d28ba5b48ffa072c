"""Positions on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox.errors import NotOwner
from oncebox.store.contract import (
    Advance,
    Connection,
    Position,
    Steps,
    Worker,
)
from oncebox.store.sqlite.claim import Claiming
from oncebox.store.sqlite.drain import named, times
from oncebox.store.sqlite.values import instant, now


class Positioned(Claiming):
    """How far sources were read, and by whom."""

    def positions(
        self, connection: Connection, consumer: str, source: str
    ) -> Steps[dict[str, Position]]:
        params = {"consumer": consumer, "source": source, "now": now()}
        found = yield from connection.fetch(self._sql["positions"], params)
        return {row[0]: _position(row) for row in found}

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
        params = {**msgspec.structs.asdict(step), "consumer": consumer, **times(step.patience)}
        if not (yield from connection.fetch(self._sql["advance"], params)):
            raise NotOwner

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


def _position(row: Sequence[Any]) -> Position:
    values: list[Any] = [*row]
    values[7:] = bool(row[7]), instant(row[8])
    return Position(*values)
