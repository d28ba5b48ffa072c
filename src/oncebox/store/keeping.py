"""Keeping: what a store knows of the age of messages. The same on every database, but for time."""

from __future__ import annotations

from datetime import datetime

from oncebox.retention import LATELY, PartSight, Sight
from oncebox.store.contract import Connection, Steps
from oncebox.store.dialect import Dialect

MANY = 10_000_001
"""Rows that are counted at most."""


class Keeping(Dialect):
    """A store, as far as it forgets."""

    def sight(self, connection: Connection, consumer: str) -> Steps[Sight]:
        """What is known of what is still to come."""
        params = {"consumer": consumer, **self._times()}
        last = yield from connection.fetch(self._sql["last_arrival"], params)
        received_at = self._moment(last[0][0]) if last else None
        minted_at = None
        if received_at is not None:
            since = {"consumer": consumer, "since": self._kept(received_at - LATELY)}
            oldest = yield from connection.fetch(self._sql["oldest_arrival"], since)
            minted_at = self._moment(oldest[0][0])
        return Sight(received_at, minted_at, (yield from self.parts_seen(connection, consumer)))

    def parts_seen(self, connection: Connection, consumer: str) -> Steps[list[PartSight]]:
        """How the parts of sources stand."""
        params = {"consumer": consumer, **self._times()}
        parts = yield from connection.fetch(self._sql["parts_seen"], params)
        return [
            PartSight(name, lag, bool(alive), self._moment(seen), self._moment(moved))  # type: ignore[arg-type]
            for name, lag, alive, seen, moved in parts
        ]

    def set_mark(self, connection: Connection, consumer: str, mark: datetime) -> Steps[datetime]:
        """Move the mark forward; answers where it is."""
        params = {"consumer": consumer, "mark": self._kept(mark)}
        found = yield from connection.fetch(self._sql["set_mark"], params)
        moment = self._moment(found[0][0])
        assert moment is not None
        return moment

    def count_old(self, connection: Connection, consumer: str, mark: datetime) -> Steps[int]:
        """How many messages are older than a mark."""
        params = {"consumer": consumer, "mark": self._kept(mark), "limit": MANY}
        found = yield from connection.fetch(self._sql["count_old"], params)
        return int(found[0][0])

    def forget_counters(self, connection: Connection, consumer: str, mark: datetime) -> Steps[None]:
        """Forget the counters of old minutes."""
        params = {"consumer": consumer, "mark": self._kept(mark)}
        yield from connection.execute(self._sql["forget_minutes"], params)
