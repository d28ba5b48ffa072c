"""The queue on PostgreSQL: each lane is a row, and a worker locks the rows of its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.errors import ConfigurationError, Conflict
from oncebox.model.ordering import LANES
from oncebox.storage.contract import Connection
from oncebox.storage.postgres.claims import PostgresClaims, milliseconds
from oncebox.storage.records import (
    NO_FLOORS,
    TOO_STRICT,
    Floors,
    PendingMessage,
    TakenBatch,
    WorkerInfo,
)
from oncebox.storage.sql import rows
from oncebox.storage.steps import Steps

LANES_AT_ONCE = 8
"""Lanes that a batch may come from. If few messages are stored, one lane does not fill a batch."""


class PostgresQueue(PostgresClaims):
    """Take stored messages from locked lanes."""

    def sign_on(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        lanes = {"consumer": consumer, "lanes": LANES}
        yield from connection.execute(self._sql["make_lanes"], lanes)
        yield from connection.execute(self._sql["delete_workers"], {"consumer": consumer})
        yield from connection.execute(self._sql["sign_on"], named(consumer, worker))
        yield from connection.execute(self._sql["take_over_workers"], named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], named(consumer, worker))

    def has_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Always True: searching costs as much as taking."""
        yield from ()
        return True

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
        params = {
            "consumer": consumer,
            "limit": worker.batch,
            "lanes": LANES_AT_ONCE,
            "timeout": milliseconds(worker.timeout),
            "wake": wake,
            "floors": floors.lanes,
            "due": floors.due,
            "server": floors.server,
        }
        found = yield from connection.fetch(self._sql["take"], params)
        is_slow = bool(found) and found[-1][0] == "s"
        if is_slow:
            found = found[:-1]
        if not found:
            return TakenBatch(is_slow=is_slow)
        state, token = found[0][:2]
        if state == "i":
            raise ConfigurationError(TOO_STRICT)
        if state == "w":
            return TakenBatch(again=True)
        if found[-1][0] == "c":
            return TakenBatch(token=token, crashed=True, again=True)
        return TakenBatch([_stored(row[2:]) for row in found], token, is_slow=is_slow)

    def raise_floors(
        self, connection: Connection, consumer: str, worker: WorkerInfo, floors: Floors
    ) -> Steps[Floors]:
        known = {
            "floors": floors.lanes,
            "due": floors.due,
            "server": floors.server,
            "drawn": floors.drawn,
            "noted_at": floors.noted_at,
            "xid": floors.xid,
        }
        params = {"consumer": consumer, "incarnation": worker.incarnation, **known}
        found = yield from connection.fetch(self._sql["raise_floors"], params)
        return Floors(*found[0])

    def clear_crash_evidence(
        self, connection: Connection, consumer: str, rows: Sequence[PendingMessage], token: Any
    ) -> Steps[None]:
        lanes = sorted({row.lane for row in rows})
        params = {"consumer": consumer, "lanes": lanes, "xid": token}
        yield from connection.execute(self._sql["limit_transaction"], {})
        yield from connection.fetch(self._sql["clear_crash_evidence"], params)

    def remove(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        yield from connection.execute(self._sql["remove"], {"seqs": [row.seq for row in rows]})

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
        yield from self._lock_keys(connection, consumer, [row.message.key])
        params = {
            "seq": row.seq,
            "crashes": row.crashes,
            "crashed": int(crashed),
            "delay": delay,
            "error": error,
        }
        found = yield from connection.fetch(self._sql["postpone"], params)
        if found and row.message.key is not None:
            yield from self._block_followers(connection, consumer, [(row.message.key, row.seq)])
        if not found:
            raise Conflict
        return int(found[0][0])

    def take_isolated(
        self, connection: Connection, row: PendingMessage, token: int, timeout: float
    ) -> Steps[TakenBatch | None]:
        params = {"seq": row.seq, "token": token, "timeout": milliseconds(timeout)}
        found = yield from connection.fetch(self._sql["take_isolated"], params)
        xid = found[0][0]
        return None if xid is None else TakenBatch([row], xid)

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        if locks := self._locks(consumer, [key]):
            yield from connection.fetch(self._sql["lock_keys"], {"locks": locks})

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
            "delay": delay,
            "error": error,
        }
        yield from connection.execute(self._sql["undo_crash"], params)

    def isolate(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        yield from connection.execute(self._sql["isolate"], {"seqs": [row.seq for row in rows]})

    def find_vanished(
        self,
        connection: Connection,
        consumer: str,
        rows: Sequence[PendingMessage],
        *,
        within: float,
    ) -> Steps[list[PendingMessage]]:
        params = {
            "consumer": consumer,
            "seqs": [row.seq for row in rows],
            "origins": [row.message.origin for row in rows],
            "ids": [row.message.id for row in rows],
            "replays": [row.replay for row in rows],
            "within": within,
        }
        gone = {row[0] for row in (yield from connection.fetch(self._sql["find_vanished"], params))}
        return [row for row in rows if row.seq in gone]

    def count_crashes(self, connection: Connection, consumer: str) -> Steps[int]:
        found = yield from connection.fetch(self._sql["count_crashes"], {"consumer": consumer})
        return int(found[0][0])

    def end_overdue_transactions(self, connection: Connection) -> Steps[None]:
        yield from connection.fetch(self._sql["end_overdue_transactions"], {})


def _stored(row: Sequence[Any]) -> PendingMessage:
    lane_, seq, *common, attempts, isolated, crashes, replay, last_error = row
    message, delivery = rows.message_of(*common, replay=replay)
    return PendingMessage(
        message, delivery, lane_, seq, attempts, isolated, crashes, replay, last_error
    )


def named(consumer: str, worker: WorkerInfo) -> rows.Row:
    """The parameters that describe a worker."""
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        "heartbeat_timeout": worker.heartbeat_timeout,
    }
