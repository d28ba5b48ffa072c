"""Purge, archive and restore on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims
from oncebox.storage.records import ArchivedMessage, ArchivedRef, Run
from oncebox.storage.sql.archives import Name, SqlArchives
from oncebox.storage.sql.retention import SqlRetention
from oncebox.storage.steps import Steps


class PostgresRetention(PostgresClaims, SqlRetention, SqlArchives):
    """Finds old messages by their place on disk: a window is a range of pages."""

    def take_purge_turn(
        self, connection: Connection, *, consumer: str, every: float
    ) -> Steps[bool]:
        params = {"consumer": consumer, "every": every}
        return bool((yield from connection.fetch(self._sql["take_purge_turn"], params)))

    def old_windows(
        self, connection: Connection, consumer: str, watermark: datetime
    ) -> Steps[list[Any]]:
        params = {"consumer": consumer, "watermark": watermark}
        return [row[0] for row in (yield from connection.fetch(self._sql["old_windows"], params))]

    def purge(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[int]:
        params = {"consumer": consumer, "watermark": watermark, "window": window}
        return (yield from self._purge_unless_replay(connection, consumer, "purge", params))

    def _purge_unless_replay(
        self, connection: Connection, consumer: str, name: str, params: dict[str, Any]
    ) -> Steps[int]:
        """Purge messages, unless a replay is about to begin: it may need them."""
        yield from self._read_committed(connection)
        yield from self._limit_lock_wait(connection)
        lock = {"lock": self._purge_lock(consumer)}
        if not (yield from connection.fetch(self._sql["may_purge"], lock))[0][0]:
            return 0
        # A later statement than the lock: it sees the messages of a replay that held the lock.
        found = yield from connection.fetch(self._sql[name], params)
        return int(found[0][0])

    def _window(self, window: Any) -> dict[str, Any]:
        return {"window": window}

    def _names(self, names: Sequence[Name]) -> dict[str, Any]:
        return {"origins": [origin for origin, _ in names], "ids": [id for _, id in names]}

    def purge_archived(
        self, connection: Connection, consumer: str, messages: Sequence[ArchivedRef]
    ) -> Steps[int]:
        params = {
            "consumer": consumer,
            **self._names([(message.origin, message.id) for message in messages]),
            "runs": [message.runs for message in messages],
            "kept": [message.has_payload for message in messages],
        }
        return (
            yield from self._purge_unless_replay(connection, consumer, "purge_archived", params)
        )

    def _restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[list[Sequence[Any]]]:
        params = {
            "consumer": consumer,
            **self._names([(record.origin, record.id) for record in records]),
            "seqs": [record.seq for record in records],
            "types": [record.type for record in records],
            "versions": [record.version for record in records],
            "keys": [record.key for record in records],
            "payloads": [record.body for record in records],
            "hashes": [record.content_hash for record in records],
            "headers": [record.headers for record in records],
            "sources": [record.source for record in records],
            "coordinates": [record.coordinates for record in records],
            "occurred": [record.occurred_at for record in records],
            "produced": [record.produced_at for record in records],
            "received": [record.received_at for record in records],
        }
        return (yield from connection.fetch(self._sql["restore"], params))

    def _restore_runs(
        self, connection: Connection, consumer: str, runs: Sequence[tuple[Name, Run]]
    ) -> Steps[None]:
        params = {
            "consumer": consumer,
            **self._names([name for name, _ in runs]),
            "replays": [run.replay for _, run in runs],
            "numbers": [run.number for _, run in runs],
            "outcomes": [run.outcome for _, run in runs],
            "errors": [run.error for _, run in runs],
            "fingerprints": [run.fingerprint for _, run in runs],
            "durations": [run.duration for _, run in runs],
            "workers": [run.worker for _, run in runs],
            "ended": [run.ended_at for _, run in runs],
        }
        yield from connection.execute(self._sql["restore_runs"], params)

    def _lock_names(
        self, connection: Connection, consumer: str, keys: Sequence[str | None]
    ) -> Steps[None]:
        yield from self._check_isolation(connection)
        yield from self._limit_lock_wait(connection)
        yield from self._lock_keys(connection, consumer, keys)
