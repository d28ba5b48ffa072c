"""Draining on SQLite: one list, one writer; workers that are gone are evidence of a death."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncebox.errors import Conflict
from oncebox.store import rows
from oncebox.store.contract import Connection, Steps
from oncebox.store.records import Stored, Taken, Worker
from oncebox.store.sqlite.claim import Claiming
from oncebox.store.sqlite.values import MINUTE, instant, json, later, now

LATELY = 10 * MINUTE


class Draining(Claiming):
    """Stored messages."""

    def sign_on(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_on"], named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], named(consumer, worker))

    def is_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        params = {"consumer": consumer, "now": now()}
        found = yield from connection.fetch(self._sql["is_work"], params)
        return bool(found[0][0])

    def others(self, connection: Connection, consumer: str, worker: Worker) -> Steps[int]:
        found = yield from connection.fetch(self._sql["others"], named(consumer, worker))
        return len(rows.alive(found))

    def take(
        self, connection: Connection, consumer: str, worker: Worker, *, wake: bool = True
    ) -> Steps[Taken]:
        yield from connection.execute(self._sql["wake"], {"consumer": consumer, "now": now()})
        crashed = yield from self._mourn(connection, consumer, worker)
        params = {"consumer": consumer, "limit": worker.batch}
        found = [] if crashed else (yield from connection.fetch(self._sql["take"], params))
        yield from connection.execute(self._sql["probe"], {})
        return Taken([_stored(row) for row in found], crashed=crashed, again=crashed)

    def _mourn(self, connection: Connection, consumer: str, worker: Worker) -> Steps[bool]:
        """Look for workers that died: what they had in hands may be what killed them."""
        others = yield from connection.fetch(self._sql["others"], named(consumer, worker))
        living = rows.alive(others)
        dead = [other for other in others if other not in living]
        for _, incarnation, batch, _ in dead:
            params = {"consumer": consumer, "incarnation": incarnation, "limit": batch}
            yield from connection.execute(self._sql["sign_off"], params)
            yield from connection.execute(self._sql["suspect_first"], params)
        return bool(dead)

    def forgive(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], token: Any
    ) -> Steps[None]:
        """Only workers that are gone are evidence here."""
        yield from ()

    def remove(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        seqs = {"seqs": json([row.seq for row in rows])}
        yield from connection.execute(self._sql["remove"], seqs)

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
        token = later(delay)
        params = {
            "seq": row.seq,
            "deaths": row.deaths,
            "died": int(died),
            "token": token,
            "error": error,
        }
        if not (yield from connection.fetch(self._sql["put_off"], params)):
            raise Conflict
        if row.message.key is not None:
            yield from self._park(connection, consumer, [(row.message.key, row.seq)])
        return token

    def take_alone(
        self, connection: Connection, row: Stored, token: int, timeout: float
    ) -> Steps[Taken | None]:
        params = {"seq": row.seq, "token": token}
        found = yield from connection.fetch(self._sql["take_alone"], params)
        yield from connection.execute(self._sql["probe"], {})
        return Taken([row]) if found else None

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        yield from ()

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
            "soon": later(delay),
            "error": error,
        }
        yield from connection.execute(self._sql["absolve"], params)

    def suspect(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        seqs = {"seqs": json([row.seq for row in rows])}
        yield from connection.execute(self._sql["suspect"], seqs)

    def vanished(
        self, connection: Connection, consumer: str, rows: Sequence[Stored], *, within: float
    ) -> Steps[list[Stored]]:
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
            if (yield from connection.fetch(self._sql["vanished"], params)):
                gone.append(row)
        return gone

    def count_deaths(self, connection: Connection, consumer: str) -> Steps[int]:
        params = {"consumer": consumer, "lately": now() - LATELY}
        found = yield from connection.fetch(self._sql["count_deaths"], params)
        return int(found[0][0])

    def end_overdue(self, connection: Connection) -> Steps[None]:
        """Nobody can end another process's transaction on SQLite but its supervisor."""
        yield from ()


def _stored(row: Sequence[Any]) -> Stored:
    lane_, seq, *common, attempts, alone, deaths, replay, last_error = row
    common[-1] = instant(common[-1])
    message, delivery = rows.message_of(*common, replay=replay)
    return Stored(message, delivery, lane_, seq, attempts, bool(alone), deaths, replay, last_error)


def named(consumer: str, worker: Worker) -> rows.Row:
    """A worker as parameters."""
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        **times(worker.patience),
    }


def times(patience: float) -> rows.Row:
    """Now, and until when somebody will be heard of."""
    return {"now": now(), "until": later(patience)}
