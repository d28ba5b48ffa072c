"""The store on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.store.reading import Reading
from oncebox.store.sqlite.dead import Letters
from oncebox.store.sqlite.drain import Draining
from oncebox.store.sqlite.keeping import Forgetful
from oncebox.store.sqlite.position import Positioned
from oncebox.store.sqlite.replay import Replayed
from oncebox.store.sqlite.sequence import Sequenced
from oncebox.store.sqlite.values import instant, json, later, microseconds, now


class SqliteStore(Draining, Positioned, Letters, Replayed, Sequenced, Forgetful, Reading):
    """SQLite 3.37 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return instant(value)

    def _kept(self, time: datetime | None) -> Any:
        return microseconds(time)

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"now": now(), "due": later(rest)}

    def _list(self, values: Sequence[Any]) -> Any:
        return json(values)
