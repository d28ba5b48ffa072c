"""PostgresStore: the store contract on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.postgres.caller_claims import PostgresCallerClaims
from oncebox.storage.postgres.dead_letters import PostgresDeadLetters
from oncebox.storage.postgres.positions import PostgresPositions
from oncebox.storage.postgres.queue import PostgresQueue
from oncebox.storage.postgres.replays import PostgresReplays
from oncebox.storage.postgres.retention import PostgresRetention
from oncebox.storage.postgres.sequences import PostgresSequences
from oncebox.storage.sql.reading import SqlReading


class PostgresStore(
    PostgresCallerClaims,
    PostgresQueue,
    PostgresPositions,
    PostgresDeadLetters,
    PostgresReplays,
    PostgresSequences,
    PostgresRetention,
    SqlReading,
):
    """The store on PostgreSQL 14 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return value  # type: ignore[no-any-return]

    def _time_param(self, time: datetime | None) -> Any:
        return time

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"rest": rest}

    def _list(self, values: Sequence[Any]) -> Any:
        return list(values)
