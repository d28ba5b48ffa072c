"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.postgres.caller_claims import CallerClaiming
from oncebox.storage.postgres.dead_letters import Letters
from oncebox.storage.postgres.positions import Positioned
from oncebox.storage.postgres.queue import Draining
from oncebox.storage.postgres.replays import Replayed
from oncebox.storage.postgres.retention import Forgetful
from oncebox.storage.postgres.sequences import Sequenced
from oncebox.storage.sql.reading import Reading


class PostgresStore(
    CallerClaiming, Draining, Positioned, Letters, Replayed, Sequenced, Forgetful, Reading
):
    """PostgreSQL 14 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return value  # type: ignore[no-any-return]

    def _kept(self, time: datetime | None) -> Any:
        return time

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"rest": rest}

    def _list(self, values: Sequence[Any]) -> Any:
        return list(values)
