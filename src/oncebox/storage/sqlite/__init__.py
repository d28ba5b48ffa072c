"""SqliteStore: the store contract on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.storage.sql.reading import SqlReading
from oncebox.storage.sqlite.caller_claims import SqliteCallerClaims
from oncebox.storage.sqlite.dead_letters import SqliteDeadLetters
from oncebox.storage.sqlite.positions import SqlitePositions
from oncebox.storage.sqlite.queue import SqliteQueue
from oncebox.storage.sqlite.replays import SqliteReplays
from oncebox.storage.sqlite.retention import SqliteRetention
from oncebox.storage.sqlite.sequences import SqliteSequences
from oncebox.storage.sqlite.values import instant, json, later, microseconds, now


class SqliteStore(
    SqliteCallerClaims,
    SqliteQueue,
    SqlitePositions,
    SqliteDeadLetters,
    SqliteReplays,
    SqliteSequences,
    SqliteRetention,
    SqlReading,
):
    """The store on SQLite 3.37 and newer."""

    def grants(self, role: str, *, claims_only: bool = False) -> str:
        raise ConfigurationError(
            "SQLite has no roles: the permissions of the file and its folder decide who may write"
        )

    def _moment(self, value: Any) -> datetime | None:
        return instant(value)

    def _time_param(self, time: datetime | None) -> Any:
        return microseconds(time)

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"now": now(), "due": later(rest)}

    def _list(self, values: Sequence[Any]) -> Any:
        return json(values)
