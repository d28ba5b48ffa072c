"""Sequence numbers on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.model.sequencing import SequenceState
from oncebox.storage.contract import Connection
from oncebox.storage.records import SequenceKey, SequenceMove
from oncebox.storage.sql.sequences import SqlSequences
from oncebox.storage.sqlite.claims import SqliteClaims
from oncebox.storage.sqlite.values import later, microseconds, now
from oncebox.storage.steps import Steps


class SqliteSequences(SqliteClaims, SqlSequences):
    """Needs no locks: the transaction is the only writer."""

    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[SequenceKey]
    ) -> Steps[dict[SequenceKey, SequenceState]]:
        known = {}
        for count in counts:
            params = {"consumer": consumer, **count._asdict(), "limit": self.at_once + 1}
            found = yield from connection.fetch(self._sql["sequence_states"], params)
            if found:
                waiting = yield from connection.fetch(self._sql["awaiting_numbers"], params)
                known[count] = self._numbers(found[0][0], [row[0] for row in waiting])
        return known

    def _store_awaiting(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> Steps[list[Sequence[Any]]]:
        kept: list[Sequence[Any]] = []
        for row in rows:
            bound = {**row, "occurred_at": microseconds(row["occurred_at"])}
            kept += yield from connection.fetch(self._sql["store_awaiting"], bound)
        return kept

    def _pull(
        self, connection: Connection, consumer: str, numbers: Sequence[tuple[SequenceKey, int]]
    ) -> Steps[None]:
        first = yield from self._draw_seqs(connection, consumer, len(numbers))
        pulled = [
            {"consumer": consumer, **count._asdict(), "number": number, "fresh": fresh}
            for fresh, (count, number) in enumerate(numbers, start=first)
        ]
        for name in ("pull_awaiting", "renumber", "drop_awaiting"):
            yield from connection.execute_many(self._sql[name], pulled)

    def _move(
        self, connection: Connection, consumer: str, moves: Sequence[SequenceMove]
    ) -> Steps[None]:
        at = now()
        moved = [
            {
                "consumer": consumer,
                **move.sequence._asdict(),
                "next": move.next,
                "waits": move.waits,
                "now": at,
            }
            for move in moves
        ]
        yield from connection.execute_many(self._sql["advance_sequences"], moved)

    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        yield from ()
        return True

    def _age_params(self, age: float) -> dict[str, Any]:
        return {"before": later(-age)}
