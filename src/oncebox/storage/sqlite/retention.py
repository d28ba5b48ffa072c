"""Purge, archive and restore on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from oncebox.errors import ArchiveError
from oncebox.storage.contract import Connection
from oncebox.storage.records import ArchivedMessage, ArchivedRef, Run
from oncebox.storage.sql.archives import Name, SqlArchives
from oncebox.storage.sql.retention import SqlRetention
from oncebox.storage.sqlite.values import json, later, now
from oncebox.storage.steps import Steps


class SqliteRetention(SqlRetention, SqlArchives):
    """Finds old messages by their time of arrival: a window is a span of time."""

    def take_purge_turn(
        self, connection: Connection, *, consumer: str, every: float
    ) -> Steps[bool]:
        params = {"consumer": consumer, "now": now(), "before": later(-every)}
        return bool((yield from connection.fetch(self._sql["take_purge_turn"], params)))

    def old_windows(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[list[Any]]:
        params = {"consumer": consumer, "watermark": self._time_param(watermark)}
        found = yield from connection.fetch(self._sql["old_windows"], params)
        return list(pairwise([*(row[0] for row in found), self._time_param(watermark)]))

    def purge(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[int]:
        params = {
            "consumer": consumer,
            "watermark": self._time_param(watermark),
            **self._window(window),
            **self._times(),
        }
        found = yield from connection.fetch(self._sql["purgeable"], params)
        yield from self._delete(connection, consumer, found)
        return len(found)

    def _delete(
        self, connection: Connection, consumer: str, found: Sequence[Sequence[Any]]
    ) -> Steps[None]:
        if found:
            seqs = json([seq for seq, _, _ in found])
            yield from connection.execute(self._sql["purge"], {"seqs": seqs})
            trail = {"consumer": consumer, **self._names([(o, i) for _, o, i in found])}
            yield from connection.execute(self._sql["purge_attempts"], trail)

    def _window(self, window: Any) -> dict[str, Any]:
        low, high = window
        return {"low": low, "high": high}

    def _names(self, names: Sequence[Name]) -> dict[str, Any]:
        return {"messages": json(names)}

    def purge_archived(
        self, connection: Connection, consumer: str, messages: Sequence[ArchivedRef]
    ) -> Steps[int]:
        params = {"consumer": consumer, "messages": json(messages), **self._times()}
        found = yield from connection.fetch(self._sql["unchanged"], params)
        yield from self._delete(connection, consumer, found)
        return len(found)

    def _restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[list[Sequence[Any]]]:
        numbered = json([(record.origin, record.id, record.seq) for record in records])
        taken = {"consumer": consumer, "messages": numbered}
        if (yield from connection.fetch(self._sql["taken_numbers"], taken)):
            raise ArchiveError(
                "the archive comes from another database: other messages in this database have "
                "the same seqs as messages of the archive. Restore it into an empty database"
            )
        restored: list[Sequence[Any]] = []
        for record in records:
            fields = {
                "consumer": consumer,
                "origin": record.origin,
                "id": record.id,
                "seq": record.seq,
                "type": record.type,
                "version": record.version,
                "key": record.key,
                "payload": record.body,
                "hash": record.content_hash,
                "headers": record.headers,
                "source": record.source,
                "coordinates": record.coordinates,
                "occurred": self._time_param(record.occurred_at),
                "produced": self._time_param(record.produced_at),
                "received": self._time_param(record.received_at),
            }
            restored += yield from connection.fetch(self._sql["restore"], fields)
        return restored

    def _restore_runs(
        self, connection: Connection, consumer: str, runs: Sequence[tuple[Name, Run]]
    ) -> Steps[None]:
        attempts = [
            {
                **msgspec.structs.asdict(run),
                "consumer": consumer,
                "origin": origin,
                "id": id,
                "ended_at": self._time_param(run.ended_at),
            }
            for (origin, id), run in runs
        ]
        yield from connection.execute_many(self._sql["restore_runs"], attempts)

    def _lock_names(
        self, connection: Connection, consumer: str, keys: Sequence[str | None]
    ) -> Steps[None]:
        """Nothing to do: the transaction is the only writer."""
        yield from ()
