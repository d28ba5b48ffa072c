"""Replays on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.model.ordering import lane
from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims
from oncebox.storage.sql.replays import ReplayItem, SqlReplays
from oncebox.storage.steps import Steps


class PostgresReplays(PostgresClaims, SqlReplays):
    """Locks the keys of messages before it draws new seqs for them."""

    def _stop_purging(self, connection: Connection, consumer: str) -> Steps[None]:
        yield from self._read_committed(connection)
        lock = {"lock": self._purge_lock(consumer)}
        yield from connection.execute(self._sql["stop_purging"], lock)

    def _store_again(
        self, connection: Connection, consumer: str, replay: int, items: Sequence[ReplayItem]
    ) -> Steps[int]:
        yield from self._check_isolation(connection)
        keys = sorted({item.key for item in items if item.key is not None})
        yield from self._lock_keys(connection, consumer, keys)
        params = {
            "consumer": consumer,
            "replay": replay,
            "keys": keys,
            "origins": [item.origin for item in items],
            "ids": [item.message_id for item in items],
            "lanes": [lane(item.key or item.message_id) for item in items],
        }
        return len((yield from connection.fetch(self._sql["store_again"], params)))

    def _remove_replayed(
        self,
        connection: Connection,
        consumer: str,
        *,
        seqs: Sequence[int],
        letters: Sequence[int],
        keys: Sequence[str],
    ) -> Steps[int]:
        yield from self._check_isolation(connection)
        yield from self._lock_keys(connection, consumer, keys)
        gone = yield from connection.fetch(self._sql["remove_replayed"], {"seqs": list(seqs)})
        dead = yield from connection.fetch(
            self._sql["remove_replayed_dead_letters"], {"ids": list(letters)}
        )
        return int(gone[0][0]) + int(dead[0][0])

    def _drop_items(self, connection: Connection, replay: int) -> Steps[int]:
        found = yield from connection.fetch(self._sql["drop_items"], {"replay": replay})
        return int(found[0][0])
