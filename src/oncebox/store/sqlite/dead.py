"""Dead letters on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox.ordering import lane
from oncebox.store import rows
from oncebox.store.contract import Connection, Steps
from oncebox.store.records import DeadLetter, Deed, Matching
from oncebox.store.sqlite.claim import Claiming
from oncebox.store.sqlite.values import instant, json, later, now


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
            "ids": None if matching.ids is None else json(list(matching.ids)),
            "keys": None if matching.keys is None else json(list(matching.keys)),
            "consumer": consumer,
            "limit": limit,
            "after": after,
            "up_to": rows.LAST if up_to is None else up_to,
        }
        found = yield from connection.fetch(self._sql["find_dead"], params)
        return [_dead_letter(row) for row in found]

    def lock_dead(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        there = {row[0] for row in (yield from connection.fetch(self._sql["still_dead"], params))}
        return [letter for letter in letters if letter.id in there]

    def revive(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        revived = [
            {"id": letter.id, "lane": lane(letter.key or letter.message_id or "")}
            for letter in letters
        ]
        yield from connection.execute_many(self._sql["revive"], revived)
        yield from self._park(connection, consumer, rows.heads(letters))
        yield from self.put_away(connection, consumer, letters, deed)

    def put_away(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        yield from connection.execute(self._sql["put_away"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        common = {**msgspec.structs.asdict(deed), "consumer": consumer, "now": now()}
        acted = [{**common, **msgspec.structs.asdict(letter)} for letter in letters]
        yield from connection.execute_many(self._sql["act"], acted)

    def has_untold(self, connection: Connection, consumer: str) -> Steps[bool]:
        params = {"consumer": consumer, "now": now()}
        found = yield from connection.fetch(self._sql["has_untold"], params)
        return bool(found[0][0])

    def lease_untold(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "limit": limit, "now": now()}
        letters = [
            _dead_letter(row) for row in (yield from connection.fetch(self._sql["untold"], params))
        ]
        until = {"until": later(lease), "ids": _ids(letters)}
        yield from connection.execute(self._sql["lease_untold"], until)
        return letters

    def told(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        yield from connection.execute(self._sql["told"], {"ids": _ids(letters)})


def _dead_letter(row: Sequence[Any]) -> DeadLetter:
    *common, occurred_at, attempts, deaths, replay, error, fingerprint, died_at = row
    tail = (attempts, deaths, replay, error, fingerprint, instant(died_at))
    return rows.dead_letter((*common, instant(occurred_at), *tail))


def _ids(letters: Sequence[DeadLetter]) -> str:
    return json([letter.id for letter in letters])
