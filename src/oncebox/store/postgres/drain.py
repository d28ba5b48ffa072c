"""Draining on PostgreSQL: lanes are rows, and whoever drains one holds its lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.errors import ConfigurationError, Conflict
from oncebox.ordering import LANES
from oncebox.store import rows
from oncebox.store.contract import Connection, Steps
from oncebox.store.postgres.claim import TOO_STRICT, Claiming, milliseconds
from oncebox.store.records import Stored, Taken, Worker

LANES_AT_ONCE = 8
"""How many lanes a batch may come from: where little is stored, one lane would not fill it."""


class Draining(Claiming):
    """Stored messages, taken from lanes that are locked."""

    def sign_on(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        lanes = {"consumer": consumer, "lanes": LANES}
        yield from connection.execute(self._sql["make_lanes"], lanes)
        yield from connection.execute(self._sql["forget_workers"], {"consumer": consumer})
        yield from connection.execute(self._sql["sign_on"], named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], named(consumer, worker))

    def is_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """To take what is ready costs no more than to look for it."""
        yield from ()
        return True

    def others(self, connection: Connection, consumer: str, worker: Worker) -> Steps[int]:
        found = yield from connection.fetch(self._sql["others"], named(consumer, worker))
        return len(rows.alive(found))

    def take(
        self, connection: Connection, consumer: str, worker: Worker, *, wake: bool = True
    ) -> Steps[Taken]:
        params = {
            "consumer": consumer,
            "limit": worker.batch,
            "lanes": LANES_AT_ONCE,
            "timeout": milliseconds(worker.timeout),
            "wake": wake,
        }
        found = yield from connection.fetch(self._sql["take"], params)
        if not found:
            return Taken()
        state, token = found[0][:2]
        if state == "i":
            raise ConfigurationError(TOO_STRICT)
        if state == "w":
            return Taken(again=True)
        if found[-1][0] == "c":
            return Taken(token=token, crashed=True, again=True)
        return Taken([_stored(row[2:]) for row in found], token)

    def forgive(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], token: Any
    ) -> Steps[None]:
        lanes = sorted({row.lane for row in rows})
        params = {"consumer": consumer, "lanes": lanes, "xid": token}
        yield from connection.execute(self._sql["be_brief"], {})
        yield from connection.fetch(self._sql["forgive"], params)

    def remove(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        yield from connection.execute(self._sql["remove"], {"seqs": [row.seq for row in rows]})

    def put_off(
        self,
        connection: Connection,
        consumer: str,
        row: Stored,
        *,
        delay: float,
        died: bool = False,
        error: str | None = None,
    ) -> Steps[int]:
        yield from self._lock_keys(connection, consumer, [row.message.key])
        params = {
            "seq": row.seq,
            "deaths": row.deaths,
            "died": int(died),
            "delay": delay,
            "error": error,
        }
        found = yield from connection.fetch(self._sql["put_off"], params)
        if found and row.message.key is not None:
            yield from self._park(connection, consumer, [(row.message.key, row.seq)])
        if not found:
            raise Conflict
        return int(found[0][0])

    def take_alone(
        self, connection: Connection, row: Stored, token: int, timeout: float
    ) -> Steps[Taken | None]:
        params = {"seq": row.seq, "token": token, "timeout": milliseconds(timeout)}
        found = yield from connection.fetch(self._sql["take_alone"], params)
        xid = found[0][0]
        return None if xid is None else Taken([row], xid)

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        if locks := self._locks(consumer, [key]):
            yield from connection.fetch(self._sql["lock_keys"], {"locks": locks})

    def absolve(
        self,
        connection: Connection,
        row: Stored,
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
        yield from connection.execute(self._sql["absolve"], params)

    def suspect(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        yield from connection.execute(self._sql["suspect"], {"seqs": [row.seq for row in rows]})

    def vanished(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], *, within: float
    ) -> Steps[list[Stored]]:
        params = {
            "consumer": consumer,
            "seqs": [row.seq for row in rows],
            "origins": [row.message.origin for row in rows],
            "ids": [row.message.id for row in rows],
            "replays": [row.replay for row in rows],
            "within": within,
        }
        gone = {row[0] for row in (yield from connection.fetch(self._sql["vanished"], params))}
        return [row for row in rows if row.seq in gone]

    def count_deaths(self, connection: Connection, consumer: str) -> Steps[int]:
        found = yield from connection.fetch(self._sql["count_deaths"], {"consumer": consumer})
        return int(found[0][0])

    def end_overdue(self, connection: Connection) -> Steps[None]:
        yield from connection.fetch(self._sql["end_overdue"], {})


def _stored(row: Sequence[Any]) -> Stored:
    lane_, seq, *common, attempts, alone, deaths, replay, last_error = row
    message, delivery = rows.message_of(*common, replay=replay)
    return Stored(message, delivery, lane_, seq, attempts, alone, deaths, replay, last_error)


def named(consumer: str, worker: Worker) -> rows.Row:
    """A worker as parameters."""
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        "patience": worker.patience,
    }
