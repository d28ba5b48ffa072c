"""The queue on SQLite: one list and one writer. Workers that did not sign off have crashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.errors import Conflict
from oncebox.storage.contract import Connection
from oncebox.storage.records import NO_FLOORS, Floors, PendingMessage, TakenBatch, WorkerInfo
from oncebox.storage.sql import rows
from oncebox.storage.sqlite.claims import SqliteClaims
from oncebox.storage.sqlite.values import MINUTE, instant, json, later, now
from oncebox.storage.steps import Steps

RECENT = 10 * MINUTE
HOUR = 60 * MINUTE


class SqliteQueue(SqliteClaims):
    """Take stored messages, the oldest first."""

    def sign_on(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        old = {"consumer": consumer, "long_ago": now() - HOUR}
        yield from connection.execute(self._sql["delete_workers"], old)
        yield from connection.execute(self._sql["sign_on"], named(consumer, worker))
        yield from connection.execute(self._sql["take_over_idle_workers"], named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], named(consumer, worker))

    def has_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        params = {"consumer": consumer, "now": now()}
        found = yield from connection.fetch(self._sql["has_work"], params)
        return bool(found[0][0])

    def count_other_workers(
        self, connection: Connection, consumer: str, worker: WorkerInfo
    ) -> Steps[int]:
        found = yield from connection.fetch(self._sql["other_workers"], named(consumer, worker))
        return len(rows.alive(found))

    def take(
        self,
        connection: Connection,
        consumer: str,
        worker: WorkerInfo,
        *,
        wake: bool = True,
        floors: Floors = NO_FLOORS,
    ) -> Steps[TakenBatch]:
        yield from connection.execute(self._sql["wake"], {"consumer": consumer, "now": now()})
        crashed = yield from self._isolate_after_crash(connection, consumer, worker)
        params = {"consumer": consumer, "limit": worker.batch}
        found = [] if crashed else (yield from connection.fetch(self._sql["take"], params))
        yield from connection.execute(self._sql["probe"], {})
        return TakenBatch([_stored(row) for row in found], crashed=crashed, again=crashed)

    def _isolate_after_crash(
        self, connection: Connection, consumer: str, worker: WorkerInfo
    ) -> Steps[bool]:
        """Find workers that did not sign off, and isolate the messages they may have held."""
        others = yield from connection.fetch(self._sql["other_workers"], named(consumer, worker))
        alive = rows.alive(others)
        crashed = [other for other in others if other not in alive]
        for _, incarnation, batch, _ in crashed:
            params = {"consumer": consumer, "incarnation": incarnation, "limit": batch}
            taken_over = {**params, "now": now()}
            yield from connection.execute(self._sql["take_over_worker"], taken_over)
            yield from connection.execute(self._sql["isolate_first"], params)
        return bool(crashed)

    def raise_floors(
        self, connection: Connection, consumer: str, worker: WorkerInfo, floors: Floors
    ) -> Steps[Floors]:
        """Nothing to raise: SQLite removes deleted rows from its indexes at once."""
        yield from ()
        return floors

    def clear_crash_evidence(
        self, connection: Connection, consumer: str, rows: Sequence[PendingMessage], token: Any
    ) -> Steps[None]:
        """Only workers that are gone are evidence here."""
        yield from ()

    def remove(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        seqs = {"seqs": json([row.seq for row in rows])}
        yield from connection.execute(self._sql["remove"], seqs)

    def postpone(
        self,
        connection: Connection,
        consumer: str,
        row: PendingMessage,
        *,
        delay: float,
        crashed: bool = False,
        error: str | None = None,
    ) -> Steps[int]:
        token = later(delay)
        params = {
            "seq": row.seq,
            "crashes": row.crashes,
            "crashed": int(crashed),
            "token": token,
            "error": error,
        }
        if not (yield from connection.fetch(self._sql["postpone"], params)):
            raise Conflict
        if row.message.key is not None:
            yield from self._block_followers(connection, consumer, [(row.message.key, row.seq)])
        return token

    def take_isolated(
        self, connection: Connection, row: PendingMessage, token: int, timeout: float
    ) -> Steps[TakenBatch | None]:
        params = {"seq": row.seq, "token": token}
        found = yield from connection.fetch(self._sql["take_isolated"], params)
        yield from connection.execute(self._sql["probe"], {})
        return TakenBatch([row]) if found else None

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        yield from ()

    def undo_crash(
        self,
        connection: Connection,
        row: PendingMessage,
        token: int,
        *,
        counted: bool,
        delay: float,
        error: str | None,
    ) -> Steps[None]:
        params = {
            "seq": row.seq,
            "token": token,
            "counted": int(counted),
            "soon": later(delay),
            "error": error,
        }
        yield from connection.execute(self._sql["undo_crash"], params)

    def isolate(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        seqs = {"seqs": json([row.seq for row in rows])}
        yield from connection.execute(self._sql["isolate"], seqs)

    def find_vanished(
        self,
        connection: Connection,
        consumer: str,
        rows: Sequence[PendingMessage],
        *,
        within: float,
    ) -> Steps[list[PendingMessage]]:
        gone = []
        for row in rows:
            params = {
                "consumer": consumer,
                "seq": row.seq,
                "origin": row.message.origin,
                "id": row.message.id,
                "replay": row.replay,
                "since": later(-within),
            }
            if (yield from connection.fetch(self._sql["find_vanished"], params)):
                gone.append(row)
        return gone

    def count_crashes(self, connection: Connection, consumer: str) -> Steps[int]:
        params = {"consumer": consumer, "since": now() - RECENT}
        found = yield from connection.fetch(self._sql["count_crashes"], params)
        return int(found[0][0])

    def end_overdue_transactions(self, connection: Connection) -> Steps[None]:
        """Nothing to do: on SQLite only the supervisor can stop a suspended process."""
        yield from ()


def _stored(row: Sequence[Any]) -> PendingMessage:
    lane_, seq, *common, attempts, isolated, crashes, replay, last_error = row
    common[-1] = instant(common[-1])
    message, delivery = rows.message_of(*common, replay=replay)
    return PendingMessage(
        message, delivery, lane_, seq, attempts, bool(isolated), crashes, replay, last_error
    )


def named(consumer: str, worker: WorkerInfo) -> rows.Row:
    """The parameters that describe a worker."""
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        **times(worker.heartbeat_timeout),
    }


def times(heartbeat_timeout: float) -> rows.Row:
    """Now, and when the next heartbeat is due."""
    return {"now": now(), "until": later(heartbeat_timeout)}
