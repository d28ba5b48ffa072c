"""Dead letters on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.ordering import lane
from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims
from oncebox.storage.records import AuditEntry
from oncebox.storage.sql import rows
from oncebox.storage.sql.dead_letters import SqlDeadLetters
from oncebox.storage.steps import Steps


class PostgresDeadLetters(PostgresClaims, SqlDeadLetters):
    """Find, retry and discard dead letters, and lease those whose hooks are due."""

    def lock_dead_letters(
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

    def retry_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        ids = [letter.id for letter in letters]
        lanes = [lane(letter.key or letter.message_id or "") for letter in letters]
        params = {"consumer": consumer, "ids": ids, "lanes": lanes}
        yield from connection.execute(self._sql["retry_dead_letters"], params)
        yield from self._block_followers(connection, consumer, rows.heads(letters))
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._audit_letters(connection, consumer, letters, audit)

    def discard_dead_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["discard_dead_letters"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._audit_letters(connection, consumer, letters, audit)

    def _audit_letters(
        self,
        connection: Connection,
        consumer: str,
        letters: Sequence[DeadLetter],
        audit: AuditEntry,
    ) -> Steps[None]:
        params = {
            **msgspec.structs.asdict(audit),
            "consumer": consumer,
            "ids": [letter.id for letter in letters],
            "origins": [letter.origin for letter in letters],
            "message_ids": [letter.message_id for letter in letters],
            "reasons": [letter.reason for letter in letters],
            "replays": [letter.replay for letter in letters],
        }
        yield from connection.execute(self._sql["audit_letters"], params)

    def has_unnotified(self, connection: Connection, consumer: str) -> Steps[bool]:
        found = yield from connection.fetch(self._sql["has_unnotified"], {"consumer": consumer})
        return bool(found[0][0])

    def lease_unnotified(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "limit": limit, "lease": lease}
        found = yield from connection.fetch(self._sql["lease_unnotified"], params)
        return [self._dead_letter(row) for row in found]

    def mark_notified(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        ids = {"ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["mark_notified"], ids)
