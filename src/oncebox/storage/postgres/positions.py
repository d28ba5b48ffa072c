"""Positions on PostgreSQL."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.model.position import Advance
from oncebox.storage.contract import Connection
from oncebox.storage.sql.positions import SqlPositions
from oncebox.storage.steps import Steps


class PostgresPositions(SqlPositions):
    """Positions of sources."""

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        params = {**msgspec.structs.asdict(step), "consumer": consumer}
        yield from connection.execute(self._sql["advance"], params)

    def _until(self, heartbeat_timeout: float) -> dict[str, Any]:
        return {"heartbeat_timeout": heartbeat_timeout}
