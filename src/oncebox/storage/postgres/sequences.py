"""Sequence numbers on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.model.sequencing import SequenceState
from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims
from oncebox.storage.records import SequenceKey, SequenceMove
from oncebox.storage.sql.sequences import SqlSequences
from oncebox.storage.steps import Steps


class PostgresSequences(PostgresClaims, SqlSequences):
    """Reads and writes sequences only while it holds the locks of their keys."""

    def sequence_states(
        self, connection: Connection, consumer: str, counts: Sequence[SequenceKey]
    ) -> Steps[dict[SequenceKey, SequenceState]]:
        params = {"consumer": consumer, "limit": self.at_once + 1, **_columns(counts)}
        found = yield from connection.fetch(self._sql["sequence_states"], params)
        return {
            SequenceKey(key, epoch): self._numbers(following, early)
            for key, epoch, following, early in found
        }

    def _store_awaiting(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> Steps[list[Sequence[Any]]]:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        params = {**columns, "consumer": rows[0]["consumer"]}
        return (yield from connection.fetch(self._sql["store_awaiting"], params))

    def _pull(
        self, connection: Connection, consumer: str, numbers: Sequence[tuple[SequenceKey, int]]
    ) -> Steps[None]:
        params = {
            "consumer": consumer,
            **_columns([count for count, _ in numbers]),
            "numbers": [number for _, number in numbers],
        }
        yield from connection.execute(self._sql["pull_awaiting"], params)

    def _move(
        self, connection: Connection, consumer: str, moves: Sequence[SequenceMove]
    ) -> Steps[None]:
        params = {
            "consumer": consumer,
            **_columns([move.sequence for move in moves]),
            "nexts": [move.next for move in moves],
            "waits": [move.waits for move in moves],
        }
        yield from connection.execute(self._sql["advance_sequences"], params)

    def try_lock_key(self, connection: Connection, consumer: str, key: str) -> Steps[bool]:
        yield from self._check_isolation(connection)
        yield from self._limit_lock_wait(connection)
        (lock,) = self._locks(consumer, [key])
        found = yield from connection.fetch(self._sql["try_lock_key"], {"lock": lock})
        return bool(found[0][0])

    def _age_params(self, age: float) -> dict[str, Any]:
        return {"age": age}


def _columns(counts: Sequence[SequenceKey]) -> dict[str, Any]:
    return {"keys": [count.key for count in counts], "epochs": [count.epoch for count in counts]}
