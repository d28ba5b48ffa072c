"""Forgetting on PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from oncebox.store.contract import Connection, Steps
from oncebox.store.keeping import Keeping


class Forgetful(Keeping):
    """Old messages are where they are on the disk: a window is some pages."""

    def take_turn(self, connection: Connection, *, consumer: str, every: float) -> Steps[bool]:
        params = {"consumer": consumer, "every": every}
        return bool((yield from connection.fetch(self._sql["take_turn"], params)))

    def old_windows(
        self, connection: Connection, consumer: str, mark: datetime
    ) -> Steps[list[Any]]:
        params = {"consumer": consumer, "mark": mark}
        return [row[0] for row in (yield from connection.fetch(self._sql["old_windows"], params))]

    def forget(
        self, connection: Connection, consumer: str, mark: datetime, window: Any
    ) -> Steps[int]:
        params = {"consumer": consumer, "mark": mark, "window": window}
        found = yield from connection.fetch(self._sql["forget"], params)
        yield from connection.execute(self._sql["forget_minutes"], params)
        return int(found[0][0])
