"""Forgetting on SQLite."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

from oncebox.store.contract import Connection, Steps
from oncebox.store.keeping import Keeping
from oncebox.store.sqlite.values import json, later, now


class Forgetful(Keeping):
    """Old messages are found by their time: a window is from one time to another."""

    def take_turn(self, connection: Connection, *, consumer: str, every: float) -> Steps[bool]:
        params = {"consumer": consumer, "now": now(), "before": later(-every)}
        return bool((yield from connection.fetch(self._sql["take_turn"], params)))

    def old_windows(
        self, connection: Connection, consumer: str, mark: datetime
    ) -> Steps[list[Any]]:
        params = {"consumer": consumer, "mark": self._kept(mark)}
        found = yield from connection.fetch(self._sql["old_windows"], params)
        return list(pairwise([*(row[0] for row in found), self._kept(mark)]))

    def forget(
        self, connection: Connection, consumer: str, mark: datetime, window: Any
    ) -> Steps[int]:
        low, high = window
        params = {"consumer": consumer, "mark": self._kept(mark), "low": low, "high": high}
        found = yield from connection.fetch(self._sql["old_ones"], params)
        if found:
            seqs = json([row[0] for row in found])
            yield from connection.execute(self._sql["forget"], {"seqs": seqs})
            messages = json([(row[1], row[2]) for row in found])
            trail = {"consumer": consumer, "messages": messages}
            yield from connection.execute(self._sql["forget_attempts"], trail)
        yield from connection.execute(self._sql["forget_minutes"], params)
        return len(found)
