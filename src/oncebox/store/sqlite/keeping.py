"""Forgetting on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from oncebox.errors import ArchiveError
from oncebox.store.archiving import Archiving, Name
from oncebox.store.contract import Connection, Steps
from oncebox.store.keeping import Keeping
from oncebox.store.records import Archived, Record, Run
from oncebox.store.sqlite.values import json, later, now


class Forgetful(Keeping, Archiving):
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
        params = {
            "consumer": consumer,
            "mark": self._kept(mark),
            **self._window(window),
            **self._times(),
        }
        found = yield from connection.fetch(self._sql["old_ones"], params)
        yield from self._forget(connection, consumer, found)
        return len(found)

    def _forget(
        self, connection: Connection, consumer: str, found: Sequence[Sequence[Any]]
    ) -> Steps[None]:
        if found:
            seqs = json([seq for seq, _, _ in found])
            yield from connection.execute(self._sql["forget"], {"seqs": seqs})
            trail = {"consumer": consumer, **self._names([(o, i) for _, o, i in found])}
            yield from connection.execute(self._sql["forget_attempts"], trail)

    def _window(self, window: Any) -> dict[str, Any]:
        low, high = window
        return {"low": low, "high": high}

    def _names(self, names: Sequence[Name]) -> dict[str, Any]:
        return {"messages": json(names)}

    def forget_these(
        self, connection: Connection, consumer: str, messages: Sequence[Archived]
    ) -> Steps[int]:
        params = {"consumer": consumer, "messages": json(messages), **self._times()}
        found = yield from connection.fetch(self._sql["unchanged"], params)
        yield from self._forget(connection, consumer, found)
        return len(found)

    def _restore(
        self, connection: Connection, consumer: str, records: Sequence[Record]
    ) -> Steps[list[Sequence[Any]]]:
        numbered = json([(record.origin, record.id, record.seq) for record in records])
        taken = {"consumer": consumer, "messages": numbered}
        if (yield from connection.fetch(self._sql["taken_numbers"], taken)):
            raise ArchiveError(
                "the archive comes from another database: here, others have the numbers of its "
                "messages"
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
                "occurred": self._kept(record.occurred_at),
                "minted": self._kept(record.minted_at),
                "received": self._kept(record.received_at),
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
                "ended_at": self._kept(run.ended_at),
            }
            for (origin, id), run in runs
        ]
        yield from connection.execute_many(self._sql["restore_runs"], attempts)

    def _lock_names(
        self, connection: Connection, consumer: str, keys: Sequence[str | None]
    ) -> Steps[None]:
        """The file is locked."""
        yield from ()
