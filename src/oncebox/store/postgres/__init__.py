"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.store.postgres.dead import Letters
from oncebox.store.postgres.drain import Draining
from oncebox.store.postgres.keeping import Forgetful
from oncebox.store.postgres.position import Positioned
from oncebox.store.postgres.replay import Replayed
from oncebox.store.postgres.sequence import Sequenced
from oncebox.store.reading import Reading


class PostgresStore(Draining, Positioned, Letters, Replayed, Sequenced, Forgetful, Reading):
    """PostgreSQL 14 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return value  # type: ignore[no-any-return]

    def _kept(self, time: datetime | None) -> Any:
        return time

    def _times(self, rest: float = 0) -> dict[str, Any]:
        return {"rest": rest}

    def _list(self, values: Sequence[Any]) -> Any:
        return list(values)
