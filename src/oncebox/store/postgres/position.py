"""Positions on PostgreSQL."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.store.contract import Connection, Steps
from oncebox.store.position import Positions
from oncebox.store.records import Advance


class Positioned(Positions):
    """How far sources were read, and by whom."""

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        params = {**msgspec.structs.asdict(step), "consumer": consumer}
        yield from connection.execute(self._sql["advance"], params)

    def _until(self, patience: float) -> dict[str, Any]:
        return {"patience": patience}
