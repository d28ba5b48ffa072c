"""Dead letters on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.ordering import lane
from oncebox.storage.contract import Connection
from oncebox.storage.records import AuditEntry
from oncebox.storage.sql import rows
from oncebox.storage.sql.dead_letters import SqlDeadLetters
from oncebox.storage.sqlite.claims import SqliteClaims
from oncebox.storage.sqlite.values import json, later, now
from oncebox.storage.steps import Steps


class SqliteDeadLetters(SqliteClaims, SqlDeadLetters):
    """Find, retry and discard dead letters, and lease those whose hooks are due."""

    def lock_dead_letters(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        there = {row[0] for row in (yield from connection.fetch(self._sql["still_dead"], params))}
        return [letter for letter in letters if letter.id in there]

    def retry_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        revived = [
            {"id": letter.id, "lane": lane(letter.key or letter.message_id or "")}
            for letter in letters
        ]
        yield from connection.execute_many(self._sql["retry_dead_letters"], revived)
        yield from self._block_followers(connection, consumer, rows.heads(letters))
        yield from self.discard_dead_letters(connection, consumer, letters, audit)

    def discard_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        yield from connection.execute(self._sql["discard_dead_letters"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        common = {**msgspec.structs.asdict(audit), "consumer": consumer, "now": now()}
        acted = [{**common, **msgspec.structs.asdict(letter)} for letter in letters]
        yield from connection.execute_many(self._sql["audit_letters"], acted)

    def has_unnotified(self, connection: Connection, consumer: str) -> Steps[bool]:
        params = {"consumer": consumer, "now": now()}
        found = yield from connection.fetch(self._sql["has_unnotified"], params)
        return bool(found[0][0])

    def lease_unnotified(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "limit": limit, "now": now()}
        letters = [
            self._dead_letter(row)
            for row in (yield from connection.fetch(self._sql["unnotified"], params))
        ]
        until = {"until": later(lease), "ids": _ids(letters)}
        yield from connection.execute(self._sql["lease_unnotified"], until)
        return letters

    def mark_notified(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        yield from connection.execute(self._sql["mark_notified"], {"ids": _ids(letters)})


def _ids(letters: Sequence[DeadLetter]) -> str:
    return json([letter.id for letter in letters])
