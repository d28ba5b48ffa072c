"""The store on SQLite: the write lock is held from the start, so reading first is safe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.message import headers_json
from oncebox.ordering import lane
from oncebox.store import rows
from oncebox.store.contract import (
    Answer,
    Arrival,
    Claims,
    Connection,
    DeadLetter,
    Deed,
    Entry,
    Matching,
    Steps,
    Stored,
    Taken,
    Worker,
)
from oncebox.store.migrations import Migrated
from oncebox.store.names import Names

PARKED = 2**63 - 1
"""Infinity, as the largest integer."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = 60_000_000
_LATELY = 10 * _MINUTE


def microseconds(time: datetime | None) -> int | None:
    """An instant as SQLite keeps it."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND


class SqliteStore(Migrated):
    """SQLite 3.37 and newer. BEGIN IMMEDIATE stands for all locks."""

    dialect = "sqlite"
    is_exclusive = True

    def __init__(self, names: Names) -> None:
        if names.schema is not None:
            raise ConfigurationError("SQLite has no schemas: use a prefix")
        super().__init__(names)
        self.scope = names.prefix

    def _meta_name(self) -> str:
        return f"{self.names.prefix}meta"

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
        # Where the caller opened the transaction it may only have read until now.
        yield from connection.execute(self._sql["take_write_lock"], {})
        known = yield from self._known(connection, consumer, arrivals)
        seqs = yield from self._insert(connection, consumer, arrivals, known, keep_payload)
        waiting = (yield from self._waiting(connection, consumer, arrivals)) if ordered else {}
        mark = yield from connection.fetch(self._sql["watermark"], {"consumer": consumer})
        watermark = mark[0][0] if mark else None
        answers = "".join(
            _answer(arrival, seq, known.get(n), waiting, watermark)
            for n, (arrival, seq) in enumerate(zip(arrivals, seqs, strict=True))
        )
        if ordered:  # a unit of work, which is guarded, and not a caller's own transaction
            yield from connection.execute(self._sql["probe"], {})
        return Claims(answers, seqs)

    def receive(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        timeout: float | None = None,
    ) -> Steps[Claims]:
        claims = yield from self.claim(connection, consumer, arrivals, keep_payload=keep_payload)
        new = [
            _bound({"consumer": consumer, **row}, _now())
            for row in rows.received_rows(arrivals, claims)
        ]
        if new:
            yield from connection.execute_many(self._sql["store_pending"], new)
        return claims

    def _known(
        self, connection: Connection, consumer: str, arrivals: Sequence[Arrival]
    ) -> Steps[dict[int, bytes | None]]:
        pairs = _json([(a.message.origin, a.message.id) for a in arrivals])
        params = {"consumer": consumer, "messages": pairs}
        found = yield from connection.fetch(self._sql["known"], params)
        known = {row[0]: row[1] for row in found}
        # The second of one id in this batch, with other bytes, comes after the first.
        first: dict[tuple[str, str], bytes | None] = {}
        for number, arrival in enumerate(arrivals):
            message = arrival.message
            name = (message.origin, message.id)
            if number not in known and name in first:
                known[number] = first[name]
            first.setdefault(name, message.content_hash)
        return known

    def _insert(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        known: dict[int, bytes | None],
        keep_payload: bool,
    ) -> Steps[list[int | None]]:
        seqs: list[int | None] = [None] * len(arrivals)
        new = [n for n in range(len(arrivals)) if n not in known]
        if not new:
            return seqs
        drawn = yield from connection.fetch(self._sql["draw_seq"], {"count": len(new)})
        for seq, n in enumerate(new, start=drawn[0][0] - len(new) + 1):
            seqs[n] = seq
        now = _now()
        inserted = [
            _inbox_row(consumer, seqs[n], arrivals[n], now, keep_payload=keep_payload) for n in new
        ]
        yield from connection.execute_many(self._sql["insert"], inserted)
        return seqs

    def _waiting(
        self, connection: Connection, consumer: str, arrivals: Sequence[Arrival]
    ) -> Steps[dict[str, bool]]:
        keys = {a.message.key for a in arrivals if a.message.key is not None}
        if not keys:
            return {}
        params = {"consumer": consumer, "keys": _json(sorted(keys))}
        found = yield from connection.fetch(self._sql["waiting"], params)
        return {row[0]: bool(row[1]) for row in found}

    def unclaim(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        new = [{"seq": seq} for seq in claims.seqs if seq is not None]
        yield from connection.execute_many(self._sql["unclaim"], new)

    def record(
        self,
        connection: Connection,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        tell: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        now = _now()
        context = {
            "consumer": consumer,
            "worker": worker,
            "ended_at": now,
            "died_at": now,
            "tell_at": now if tell else None,
        }
        left = rows.noteworthy(entries)
        for name, table in (
            ("store_pending", rows.pending_rows(left)),
            ("store_dead", rows.dead_rows(left)),
            ("store_attempts", rows.attempt_rows(left)),
        ):
            if table:
                bound = [_bound({**context, **row}, now) for row in table]
                yield from connection.execute_many(self._sql[name], bound)
        yield from self._park(connection, consumer, rows.holders(left))
        yield from self._release(connection, consumer, rows.releasers(left))
        minute = {"minute": now - now % _MINUTE, **context, **rows.counters(entries)}
        yield from connection.execute(self._sql["count"], minute)

    def _park(
        self, connection: Connection, consumer: str, holders: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        for key, seq in holders:
            params = {"consumer": consumer, "key": key, "seq": seq}
            yield from connection.execute(self._sql["park_followers"], params)

    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        if keys:
            params = {"consumer": consumer, "keys": _json(keys)}
            yield from connection.execute(self._sql["release"], params)

    def channel(self, consumer: str) -> str | None:
        """SQLite tells nobody."""
        return None

    def guard(self, token: Any) -> tuple[str, Mapping[str, Any]]:
        return self._sql["guard"], {}

    # -- draining ---------------------------------------------------------------------------------

    def sign_on(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_on"], _named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], _named(consumer, worker))

    def is_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        params = {"consumer": consumer, "now": _now()}
        found = yield from connection.fetch(self._sql["is_work"], params)
        return bool(found[0][0])

    def others(self, connection: Connection, consumer: str, worker: Worker) -> Steps[int]:
        found = yield from connection.fetch(self._sql["others"], _named(consumer, worker))
        return len(rows.alive(found))

    def take(self, connection: Connection, consumer: str, worker: Worker) -> Steps[Taken]:
        yield from connection.execute(self._sql["wake"], {"consumer": consumer, "now": _now()})
        crashed = yield from self._mourn(connection, consumer, worker)
        params = {"consumer": consumer, "limit": worker.batch}
        found = [] if crashed else (yield from connection.fetch(self._sql["take"], params))
        yield from connection.execute(self._sql["probe"], {})
        return Taken([_stored(row) for row in found], crashed=crashed, again=crashed)

    def _mourn(self, connection: Connection, consumer: str, worker: Worker) -> Steps[bool]:
        """Look for workers that died: what they had in hands may be what killed them."""
        others = yield from connection.fetch(self._sql["others"], _named(consumer, worker))
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
        seqs = {"seqs": _json([row.seq for row in rows])}
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
        token = _now() + round(delay * 1_000_000)
        params = {
            "seq": row.seq,
            "deaths": row.deaths,
            "died": int(died),
            "token": token,
            "error": error,
        }
        yield from connection.fetch(self._sql["put_off"], params)
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
            "soon": _now() + round(delay * 1_000_000),
            "error": error,
        }
        yield from connection.execute(self._sql["absolve"], params)

    def suspect(self, connection: Connection, rows: Sequence[Stored]) -> Steps[None]:
        seqs = {"seqs": _json([row.seq for row in rows])}
        yield from connection.execute(self._sql["suspect"], seqs)

    def vanished(
        self, connection: Connection, consumer: str, rows: Sequence[Stored]
    ) -> Steps[list[Stored]]:
        gone = []
        for row in rows:
            params = {
                "consumer": consumer,
                "seq": row.seq,
                "origin": row.message.origin,
                "id": row.message.id,
                "replay": row.replay,
                "number": row.attempts,
            }
            if (yield from connection.fetch(self._sql["vanished"], params)):
                gone.append(row)
        return gone

    def count_deaths(self, connection: Connection, consumer: str) -> Steps[int]:
        params = {"consumer": consumer, "lately": _now() - _LATELY}
        found = yield from connection.fetch(self._sql["count_deaths"], params)
        return int(found[0][0])

    def end_overdue(self, connection: Connection) -> Steps[None]:
        """Nobody can end another process's transaction on SQLite but its supervisor."""
        yield from ()

    # -- dead letters -----------------------------------------------------------------------------

    def newest_dead(self, connection: Connection, consumer: str) -> Steps[int]:
        found = yield from connection.fetch(self._sql["newest_dead"], {"consumer": consumer})
        return int(found[0][0])

    def find_dead(
        self,
        connection: Connection,
        consumer: str,
        matching: Matching,
        *,
        limit: int,
        after: int = 0,
        up_to: int | None = None,
    ) -> Steps[list[DeadLetter]]:
        params = {
            **msgspec.structs.asdict(matching),
            "ids": None if matching.ids is None else _json(list(matching.ids)),
            "consumer": consumer,
            "limit": limit,
            "after": after,
            "up_to": rows.LAST if up_to is None else up_to,
        }
        found = yield from connection.fetch(self._sql["find_dead"], params)
        return [_dead_letter(row) for row in found]

    def lock_dead(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        there = {row[0] for row in (yield from connection.fetch(self._sql["still_dead"], params))}
        return [letter for letter in letters if letter.id in there]

    def revive(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        revived = [
            {"id": letter.id, "lane": lane(letter.key or letter.message_id or "")}
            for letter in letters
        ]
        yield from connection.execute_many(self._sql["revive"], revived)
        yield from self._park(connection, consumer, rows.heads(letters))
        yield from self.bury(connection, consumer, letters, deed)

    def bury(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": _ids(letters)}
        yield from connection.execute(self._sql["bury"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        common = {**msgspec.structs.asdict(deed), "consumer": consumer, "now": _now()}
        acted = [{**common, **msgspec.structs.asdict(letter)} for letter in letters]
        yield from connection.execute_many(self._sql["act"], acted)

    def lease_untold(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        now = _now()
        params = {"consumer": consumer, "limit": limit, "now": now}
        letters = [
            _dead_letter(row) for row in (yield from connection.fetch(self._sql["untold"], params))
        ]
        until = {"until": now + round(lease * 1_000_000), "ids": _ids(letters)}
        yield from connection.execute(self._sql["lease_untold"], until)
        return letters

    def told(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        yield from connection.execute(self._sql["told"], {"ids": _ids(letters)})


def _stored(row: Sequence[Any]) -> Stored:
    lane_, seq, *common, attempts, alone, deaths, replay, last_error = row
    common[-1] = _datetime(common[-1])
    message, delivery = rows.message_of(*common)
    return Stored(message, delivery, lane_, seq, attempts, bool(alone), deaths, replay, last_error)


def _dead_letter(row: Sequence[Any]) -> DeadLetter:
    *common, occurred_at, attempts, deaths, replay, error, fingerprint, died_at = row
    tail = (attempts, deaths, replay, error, fingerprint, _datetime(died_at))
    return rows.dead_letter((*common, _datetime(occurred_at), *tail))


def _ids(letters: Sequence[DeadLetter]) -> str:
    return _json([letter.id for letter in letters])


def _datetime(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + microseconds * _MICROSECOND


def _named(consumer: str, worker: Worker) -> rows.Row:
    now = _now()
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        "now": now,
        "until": now + round(worker.patience * 1_000_000),
    }


def _answer(
    arrival: Arrival,
    seq: int | None,
    known_hash: bytes | None,
    waiting: dict[str, bool],
    watermark: int | None,
) -> str:
    message = arrival.message
    if seq is None:
        hashes = (known_hash, message.content_hash)
        differs = None not in hashes and hashes[0] != hashes[1]
        return Answer.other_bytes if differs else Answer.duplicate
    minted = microseconds(message.minted_at)
    if watermark is not None and minted is not None and minted < watermark:
        return Answer.too_late
    if message.key is None or message.key not in waiting:
        return Answer.new
    return Answer.waits if waiting[message.key] else Answer.queued


def _inbox_row(
    consumer: str, seq: int | None, arrival: Arrival, now: int, *, keep_payload: bool
) -> rows.Row:
    message, delivery = arrival.message, arrival.delivery
    return {
        "seq": seq,
        "consumer": consumer,
        "origin": message.origin,
        "message_id": message.id,
        "type": message.type,
        "version": message.version,
        "key": message.key,
        "payload": message.payload if keep_payload else None,
        "content_hash": message.content_hash,
        "headers": headers_json(message.headers),
        "source": delivery.source,
        "coordinates": delivery.coordinates,
        "occurred_at": microseconds(message.occurred_at),
        "minted_at": microseconds(message.minted_at),
        "received_at": now,
    }


def _bound(row: rows.Row, now: int) -> rows.Row:
    """A row with its times as integers."""
    if "occurred_at" in row:
        row["occurred_at"] = microseconds(row["occurred_at"])
    if "delay" in row:
        delay = row.pop("delay")
        parked = PARKED if delay == inf else None
        row["available_at"] = parked if delay in (None, inf) else now + round(delay * 1_000_000)
    return row


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _now() -> int:
    return time.time_ns() // 1000
