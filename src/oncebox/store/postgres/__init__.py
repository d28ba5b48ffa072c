"""The store on PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from oncebox.store.postgres.dead import Letters
from oncebox.store.postgres.drain import Draining
from oncebox.store.postgres.keeping import Forgetful
from oncebox.store.postgres.position import Positioned
from oncebox.store.reading import Reading


class PostgresStore(Draining, Positioned, Letters, Forgetful, Reading):
    """PostgreSQL 14 and newer."""

    def _moment(self, value: Any) -> datetime | None:
        return value  # type: ignore[no-any-return]

    def _kept(self, time: datetime | None) -> Any:
        return time
