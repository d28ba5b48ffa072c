"""Replays on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from oncebox.model.ordering import lane
from oncebox.storage.contract import Connection
from oncebox.storage.sql.replays import ReplayItem, SqlReplays
from oncebox.storage.sqlite.claims import SqliteClaims
from oncebox.storage.sqlite.values import json
from oncebox.storage.steps import Steps


class SqliteReplays(SqliteClaims, SqlReplays):
    """Needs no locks: the transaction is the only writer."""

    def _stop_purging(self, connection: Connection, consumer: str) -> Steps[None]:
        yield from ()

    def _store_again(
        self, connection: Connection, consumer: str, replay: int, items: Sequence[ReplayItem]
    ) -> Steps[int]:
        first = yield from self._draw_seqs(connection, consumer, len(items))
        stored = [
            {
                "consumer": consumer,
                "replay": replay,
                "origin": item.origin,
                "id": item.message_id,
                "lane": lane(item.key or item.message_id),
                "fresh": fresh,
            }
            for fresh, item in enumerate(items, start=first)
        ]
        yield from connection.execute_many(self._sql["store_again"], stored)
        found = yield from connection.fetch(self._sql["count_from"], {"first": first})
        return int(found[0][0])

    def _remove_replayed(
        self,
        connection: Connection,
        consumer: str,
        *,
        seqs: Sequence[int],
        letters: Sequence[int],
        keys: Sequence[str],
    ) -> Steps[int]:
        yield from connection.execute(self._sql["remove_replayed"], {"seqs": json(seqs)})
        yield from connection.execute(
            self._sql["remove_replayed_dead_letters"], {"ids": json(letters)}
        )
        return len(seqs) + len(letters)

    def _drop_items(self, connection: Connection, replay: int) -> Steps[int]:
        found = yield from connection.fetch(self._sql["count_items"], {"replay": replay})
        yield from connection.execute(self._sql["drop_items"], {"replay": replay})
        return int(found[0][0])
