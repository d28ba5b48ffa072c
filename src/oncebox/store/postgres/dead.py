"""Dead letters on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.ordering import lane
from oncebox.store import rows
from oncebox.store.contract import Connection, Steps
from oncebox.store.postgres.claim import Claiming
from oncebox.store.records import DeadLetter, Deed, Matching


class Letters(Claiming):
    """Dead letters: found, put back, put away, told."""

    def newest_dead(self, connection: Connection, consumer: str) -> Steps[int]:
        found = yield from connection.fetch(self._sql["newest_dead"], {"consumer": consumer})
        return int(found[0][0])

    def find_dead(
        self,
        connection: Connection,
        consumer: str,
        matching: Matching,
        *,
        limit: int,
        after: int = 0,
        up_to: int | None = None,
    ) -> Steps[list[DeadLetter]]:
        params = {
            **msgspec.structs.asdict(matching),
            "ids": None if matching.ids is None else list(matching.ids),
            "keys": None if matching.keys is None else list(matching.keys),
            "consumer": consumer,
            "limit": limit,
            "after": after,
            "up_to": rows.LAST if up_to is None else up_to,
        }
        found = yield from connection.fetch(self._sql["find_dead"], params)
        return [rows.dead_letter(row) for row in found]

    def lock_dead(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        yield from self._check_isolation(connection)
        keys = rows.keys_of(letters)
        yield from self._lock_keys(connection, consumer, keys)
        locked = {"consumer": consumer, "keys": keys}
        busy = {row[0] for row in (yield from connection.fetch(self._sql["busy_keys"], locked))}
        known = {"consumer": consumer, "ids": [letter.id for letter in letters]}
        there = {row[0] for row in (yield from connection.fetch(self._sql["still_dead"], known))}
        return [letter for letter in letters if letter.id in there and letter.key not in busy]

    def revive(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        ids = [letter.id for letter in letters]
        lanes = [lane(letter.key or letter.message_id or "") for letter in letters]
        params = {"consumer": consumer, "ids": ids, "lanes": lanes}
        yield from connection.execute(self._sql["revive"], params)
        yield from self._park(connection, consumer, rows.heads(letters))
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._act(connection, consumer, letters, deed)

    def put_away(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["put_away"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._act(connection, consumer, letters, deed)

    def _act(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {
            **msgspec.structs.asdict(deed),
            "consumer": consumer,
            "ids": [letter.id for letter in letters],
            "origins": [letter.origin for letter in letters],
            "message_ids": [letter.message_id for letter in letters],
            "reasons": [letter.reason for letter in letters],
            "replays": [letter.replay for letter in letters],
        }
        yield from connection.execute(self._sql["act"], params)

    def has_untold(self, connection: Connection, consumer: str) -> Steps[bool]:
        found = yield from connection.fetch(self._sql["has_untold"], {"consumer": consumer})
        return bool(found[0][0])

    def lease_untold(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "limit": limit, "lease": lease}
        found = yield from connection.fetch(self._sql["lease_untold"], params)
        return [rows.dead_letter(row) for row in found]

    def told(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        ids = {"ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["told"], ids)
