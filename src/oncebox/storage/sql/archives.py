"""Archive, restore and erase messages; shared by the SQL stores."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from oncebox.errors import ArchiveError
from oncebox.model.filters import MessageFilter
from oncebox.storage.contract import Connection
from oncebox.storage.records import ArchivedMessage, ArchivedRef, AuditEntry, Run
from oncebox.storage.sql.dialect import Dialect
from oncebox.storage.steps import Steps

MANY = 2**31 - 1

Name = tuple[str, str]
"""The origin and the id of a message."""


class SqlArchives(Dialect):
    """Archive, restore and erase messages."""

    @abstractmethod
    def _window(self, window: Any) -> dict[str, Any]:
        """The parameters of a window."""

    @abstractmethod
    def _names(self, names: Sequence[Name]) -> dict[str, Any]:
        """The parameters that name messages."""

    @abstractmethod
    def purge_archived(
        self, connection: Connection, consumer: str, messages: Sequence[ArchivedRef]
    ) -> Steps[int]:
        """Delete archived messages that have not changed since. Returns how many."""

    @abstractmethod
    def _restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[list[Sequence[Any]]]:
        """Insert messages. Returns those that did not exist."""

    @abstractmethod
    def _restore_runs(
        self, connection: Connection, consumer: str, runs: Sequence[tuple[Name, Run]]
    ) -> Steps[None]:
        """Insert attempts."""

    @abstractmethod
    def _selection(self, consumer: str, filter: MessageFilter) -> tuple[str, dict[str, Any]]:
        """The statement that finds the messages of a filter, and its parameters."""

    @abstractmethod
    def _lock_names(
        self, connection: Connection, consumer: str, keys: Sequence[str | None]
    ) -> Steps[None]:
        """Lock the keys of messages, if the database has such locks."""

    def old_size(
        self, connection: Connection, consumer: str, watermark: datetime, window: Any
    ) -> Steps[tuple[int, int]]:
        """How many old messages a window has, and roughly the bytes of their payloads."""
        params = {
            "consumer": consumer,
            "watermark": self._time_param(watermark),
            **self._window(window),
        }
        count, size = (yield from connection.fetch(self._sql["old_size"], params))[0]
        return int(count), int(size)

    def old_messages(
        self,
        connection: Connection,
        consumer: str,
        watermark: datetime,
        window: Any,
        *,
        after: int = 0,
        limit: int = MANY,
    ) -> Steps[list[ArchivedMessage]]:
        """The messages of a window that may be purged, with their attempts.

        Only those after the seq `after`.
        """
        params = {
            "consumer": consumer,
            "watermark": self._time_param(watermark),
            **self._window(window),
            "after": after,
            "limit": limit,
        }
        yield from self._limit_lock_wait(connection)
        found = yield from connection.fetch(self._sql["old_messages"], params)
        if not found:
            return []
        names = {"consumer": consumer, **self._names([(row[1], row[2]) for row in found])}
        runs: dict[Name, list[Run]] = defaultdict(list)
        for row in (yield from connection.fetch(self._sql["runs_of"], names)):
            origin, id, number, outcome, worker, ended_at, *rest = row
            moment = self._moment(ended_at)
            assert moment is not None
            runs[origin, id].append(Run(number, outcome, worker, moment, *rest))
        return [self._archived(row, runs[row[1], row[2]]) for row in found]

    def _archived(self, row: Sequence[Any], runs: list[Run]) -> ArchivedMessage:
        seq, origin, id, type, version, received_at, key, payload, hash_, headers, *rest = row
        source, coordinates, occurred_at, produced_at = rest
        return ArchivedMessage.of(
            None if payload is None else bytes(payload),
            seq=seq,
            origin=origin,
            id=id,
            type=type,
            version=version,
            received_at=self._moment(received_at),
            key=key,
            content_hash=None if hash_ is None else bytes(hash_),
            headers=headers,
            source=source,
            coordinates=coordinates,
            occurred_at=self._moment(occurred_at),
            produced_at=self._moment(produced_at),
            runs=runs,
        )

    def purge_paused_until(self, connection: Connection, consumer: str) -> Steps[datetime | None]:
        """Until when no messages are purged, because an archive was restored."""
        params = {"consumer": consumer, **self._times()}
        found = yield from connection.fetch(self._sql["purge_paused_until"], params)
        return self._moment(found[0][0]) if found else None

    def begin_restore(
        self,
        connection: Connection,
        consumer: str,
        *,
        keep: float,
        last_seq: int,
        file: str,
        audit: AuditEntry,
    ) -> Steps[None]:
        """Prepare to restore a file: pause the purge, and check that its seqs are not in use."""
        last, is_used = (yield from connection.fetch(self._sql["last_seq"], {}))[0]
        if last < last_seq:
            if is_used:
                raise ArchiveError(
                    f"{file} comes from another database: restore it into that database or into "
                    "an empty one"
                )
            yield from connection.fetch(self._sql["raise_seq"], {"last": last_seq})
        pause = {"consumer": consumer, **self._times(keep)}
        yield from connection.execute(self._sql["pause_purge"], pause)
        yield from self.write_audit(connection, consumer, audit, file)

    def write_audit(
        self, connection: Connection, consumer: str, audit: AuditEntry, about: str
    ) -> Steps[None]:
        """Record an operator's action that does not concern a single message."""
        noted = {**msgspec.structs.asdict(audit), "consumer": consumer, "about": about}
        yield from connection.execute(self._sql["write_audit"], {**noted, **self._times()})

    def restore(
        self, connection: Connection, consumer: str, records: Sequence[ArchivedMessage]
    ) -> Steps[int]:
        """Insert archived messages and their attempts. Returns how many did not exist."""
        found = yield from self._restore(connection, consumer, records)
        restored = {(origin, id) for origin, id in found}
        runs = [
            ((record.origin, record.id), run)
            for record in records
            if (record.origin, record.id) in restored
            for run in record.runs
        ]
        if runs:
            yield from self._restore_runs(connection, consumer, runs)
        return len(restored)

    def find_messages(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[list[Sequence[Any]]]:
        """Find the messages that match, in any state if the filter names none.

        Each row has key, origin, id, and True if there is data to erase.
        """
        sql, params = self._selection(consumer, filter)
        wanted = self._sql["find_messages"].replace("SELECTED", sql)
        params = {**params, "in_state": filter.get("state")}
        return (yield from connection.fetch(wanted, params))

    def count_quarantined(
        self, connection: Connection, consumer: str, filter: MessageFilter
    ) -> Steps[int]:
        """How many never-claimed deliveries in quarantine have the key or id of the filter."""
        params = {
            "consumer": consumer,
            "key": filter.get("key"),
            "ids": self._list(list(filter.get("ids") or [])),
        }
        found = yield from connection.fetch(self._sql["count_quarantined"], params)
        return int(found[0][0])

    def erase(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[str | None, str, str]],
        audit: AuditEntry,
    ) -> Steps[int]:
        """Erase the payloads of finished messages, given by key, origin and id."""
        yield from self._lock_names(connection, consumer, [key for key, _, _ in messages])
        names = {"consumer": consumer, **self._names([(o, i) for _, o, i in messages])}
        found = yield from connection.fetch(self._sql["erase"], names)
        if not found:
            return 0
        erased = {"consumer": consumer, **self._names([(origin, id) for origin, id in found])}
        yield from connection.execute(self._sql["erase_runs"], erased)
        acted = {**erased, **msgspec.structs.asdict(audit), **self._times()}
        yield from connection.execute(self._sql["audit_messages"], acted)
        return len(found)
