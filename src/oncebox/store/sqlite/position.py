"""Positions on SQLite."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.errors import NotOwner
from oncebox.store.contract import Connection, Steps
from oncebox.store.position import Positions
from oncebox.store.records import Advance
from oncebox.store.sqlite.drain import times


class Positioned(Positions):
    """How far sources were read, and by whom."""

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        params = {**msgspec.structs.asdict(step), "consumer": consumer, **times(step.patience)}
        if not (yield from connection.fetch(self._sql["advance"], params)):
            raise NotOwner

    def _until(self, patience: float) -> dict[str, Any]:
        return times(patience)
