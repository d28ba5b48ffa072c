"""Positions on SQLite."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.errors import NotOwner
from oncebox.model.position import Advance
from oncebox.storage.contract import Connection
from oncebox.storage.sql.positions import SqlPositions
from oncebox.storage.sqlite.queue import times
from oncebox.storage.steps import Steps


class SqlitePositions(SqlPositions):
    """Positions of sources."""

    def advance(self, connection: Connection, consumer: str, step: Advance) -> Steps[None]:
        params = {
            **msgspec.structs.asdict(step),
            "consumer": consumer,
            **times(step.heartbeat_timeout),
        }
        if not (yield from connection.fetch(self._sql["advance"], params)):
            raise NotOwner

    def _until(self, heartbeat_timeout: float) -> dict[str, Any]:
        return times(heartbeat_timeout)
