"""The store on PostgreSQL: a claim is one function call, everything else is set-wise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.message import headers_json
from oncebox.ordering import lock_number
from oncebox.store import rows
from oncebox.store.contract import Arrival, Claims, Connection, Entry, Steps
from oncebox.store.migrations import Migrated
from oncebox.store.names import Names


class PostgresStore(Migrated):
    """PostgreSQL 14 and newer."""

    dialect = "postgres"

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.scope = f"{names.schema or ''}\0{names.prefix}"

    def claim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        ordered: bool = True,
        keep_payload: bool = True,
        timeout: float | None = None,
        any_snapshot: bool = True,
    ) -> Steps[Claims]:
        messages = [arrival.message for arrival in arrivals]
        params = {
            "consumer": consumer,
            "locks": self._locks(consumer, arrivals) if ordered else [],
            "origins": [m.origin for m in messages],
            "ids": [m.id for m in messages],
            "types": [m.type for m in messages],
            "versions": [m.version for m in messages],
            "keys": _column([m.key for m in messages]),
            "payloads": [m.payload for m in messages] if keep_payload else None,
            "hashes": _column([m.content_hash for m in messages]),
            "headers": _column([headers_json(m.headers) for m in messages]),
            "sources": [a.delivery.source for a in arrivals],
            "coordinates": _column([a.delivery.coordinates for a in arrivals]),
            "occurred": _column([m.occurred_at for m in messages]),
            "minted": _column([m.minted_at for m in messages]),
            "timeout": None if timeout is None else f"{timeout * 1000:.0f}ms",
            "any_snapshot": any_snapshot,
        }
        found = yield from connection.fetch(self._sql["claim"], params)
        answers, seqs, xid = found[0]
        return Claims(answers or "", seqs or [], xid)

    def _locks(self, consumer: str, arrivals: Sequence[Arrival]) -> list[int]:
        scope = f"{self.scope}\0{consumer}"
        return sorted({lock_number(scope, a.message.key) for a in arrivals if a.message.key})

    def unclaim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        new = [a.message for a, seq in zip(arrivals, claims.seqs, strict=True) if seq is not None]
        params = {
            "consumer": consumer,
            "origins": [message.origin for message in new],
            "ids": [message.id for message in new],
        }
        yield from connection.execute(self._sql["unclaim"], params)

    def record(
        self, connection: Connection, consumer: str, worker: str, entries: Sequence[Entry]
    ) -> Steps[None]:
        context = {"consumer": consumer, "worker": worker}
        left = rows.unfinished(entries)
        for name, table in (
            ("store_pending", rows.pending_rows(left)),
            ("store_dead", rows.dead_rows(left)),
            ("store_attempts", rows.attempt_rows(left)),
        ):
            if table:
                columns = {column: [row[column] for row in table] for column in table[0]}
                yield from connection.execute(self._sql[name], {**context, **columns})
        yield from connection.execute(self._sql["count"], {**context, **rows.counters(entries)})

    def migrate(self, connection: Connection) -> Steps[list[str]]:
        lock = {"lock": lock_number(self.scope, "migrations")}
        yield from connection.fetch(self._sql["lock_migrations"], lock)
        return (yield from super().migrate(connection))

    def guard(self, claims: Claims) -> tuple[str, Mapping[str, Any]]:
        return self._sql["guard"], {"xid": claims.token}


def _column(values: list[Any]) -> list[Any] | None:
    """An array, or None where it holds nothing: unnest() fills it up, and we need not send it."""
    return values if any(value is not None for value in values) else None
