"""The store on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.sql.reading import Reading
from oncebox.storage.sqlite.caller_claims import CallerClaiming
from oncebox.storage.sqlite.dead_letters import Letters
from oncebox.storage.sqlite.positions import Positioned
from oncebox.storage.sqlite.queue import Draining
from oncebox.storage.sqlite.replays import Replayed
from oncebox.storage.sqlite.retention import Forgetful
from oncebox.storage.sqlite.sequences import Sequenced
from oncebox.storage.sqlite.values import instant, json, later, microseconds, now


class SqliteStore(
    CallerClaiming, Draining, Positioned, Letters, Replayed, Sequenced, Forgetful, Reading
):
    """SQLite 3.37 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return instant(value)

    def _kept(self, time: datetime | None) -> Any:
        return microseconds(time)

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"now": now(), "due": later(rest)}

    def _list(self, values: Sequence[Any]) -> Any:
        return json(values)
