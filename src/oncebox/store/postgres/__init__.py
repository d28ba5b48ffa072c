"""The store on PostgreSQL: a claim is one function call, everything else is set-wise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from oncebox.errors import ConfigurationError
from oncebox.message import headers_json
from oncebox.ordering import LANES, lane, lock_number
from oncebox.store import rows
from oncebox.store.contract import (
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

LANES_AT_ONCE = 8
"""How many lanes a batch may come from: where little is stored, one lane would not fill it."""


TOO_STRICT = (
    "messages can be kept in order only at READ COMMITTED, and this connection begins its "
    "transactions at a stricter level: give the inbox a pool or an engine of its own"
)


class PostgresStore(Migrated):
    """PostgreSQL 14 and newer."""

    dialect = "postgres"
    is_exclusive = False

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
        params = self._arrived(consumer, arrivals, ordered=ordered, timeout=timeout)
        params["any_snapshot"] = any_snapshot
        if not keep_payload:
            params["payloads"] = None
        return (yield from self._claimed(connection, "claim", params))

    def receive(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        *,
        keep_payload: bool = True,
        timeout: float | None = None,
    ) -> Steps[Claims]:
        params = self._arrived(consumer, arrivals, ordered=True, timeout=timeout)
        params["any_snapshot"] = True
        params["keep_payload"] = keep_payload
        params["lanes"] = [lane(a.message.key or a.message.id) for a in arrivals]
        params["alone"] = _column([a.delivery.redelivered or None for a in arrivals])
        return (yield from self._claimed(connection, "receive", params))

    def _claimed(self, connection: Connection, name: str, params: rows.Row) -> Steps[Claims]:
        found = yield from connection.fetch(self._sql[name], params)
        answers, seqs, xid = found[0]
        return Claims(answers or "", seqs or [], xid)

    def _arrived(
        self, consumer: str, arrivals: Sequence[Arrival], *, ordered: bool, timeout: float | None
    ) -> rows.Row:
        """The messages as columns."""
        messages = [arrival.message for arrival in arrivals]
        keys = [m.key for m in messages]
        return {
            "consumer": consumer,
            "locks": self._locks(consumer, keys) if ordered else [],
            "origins": [m.origin for m in messages],
            "ids": [m.id for m in messages],
            "types": [m.type for m in messages],
            "versions": [m.version for m in messages],
            "keys": _column(keys),
            "payloads": [m.payload for m in messages],
            "hashes": _column([m.content_hash for m in messages]),
            "headers": _column([headers_json(m.headers) for m in messages]),
            "sources": [a.delivery.source for a in arrivals],
            "coordinates": _column([a.delivery.coordinates for a in arrivals]),
            "occurred": _column([m.occurred_at for m in messages]),
            "minted": _column([m.minted_at for m in messages]),
            "timeout": _milliseconds(timeout),
        }

    def _locks(self, consumer: str, keys: Iterable[str | None]) -> list[int]:
        scope = f"{self.scope}\0{consumer}"
        return sorted({lock_number(scope, key) for key in keys if key})

    def _lock_keys(
        self, connection: Connection, consumer: str, keys: Iterable[str | None]
    ) -> Steps[None]:
        if locks := self._locks(consumer, keys):
            yield from connection.execute(self._sql["lock_keys"], {"locks": locks})

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
        self,
        connection: Connection,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        tell: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        context = {"consumer": consumer, "worker": worker, "tell": tell}
        left = rows.noteworthy(entries)
        holders, releasers = rows.holders(left), rows.releasers(left)
        yield from self._lock_keys(connection, consumer, [*dict(holders), *releasers])
        for name, table in (
            ("store_pending", rows.pending_rows(left)),
            ("store_dead", rows.dead_rows(left)),
            ("store_attempts", rows.attempt_rows(left)),
        ):
            if table:
                columns = {column: [row[column] for row in table] for column in table[0]}
                yield from connection.execute(self._sql[name], {**context, **columns})
        yield from self._park(connection, consumer, holders)
        yield from self._release(connection, consumer, releasers)
        if notify and rows.has_ready(left):
            channel = {"channel": self.channel(consumer)}
            yield from connection.execute(self._sql["notify"], channel)
        yield from connection.execute(self._sql["count"], {**context, **rows.counters(entries)})

    def _park(
        self, connection: Connection, consumer: str, holders: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        if holders:
            keys, seqs = zip(*holders, strict=True)
            params = {"consumer": consumer, "keys": list(keys), "seqs": list(seqs)}
            yield from connection.execute(self._sql["park_followers"], params)

    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        if keys:
            params = {"consumer": consumer, "keys": list(keys)}
            yield from connection.execute(self._sql["release"], params)

    def channel(self, consumer: str) -> str | None:
        return f"oncebox_{lock_number(self.scope, consumer) & (2**64 - 1):016x}"

    def guard(self, token: Any) -> tuple[str, Mapping[str, Any]]:
        return self._sql["guard"], {"xid": token}

    # -- draining ---------------------------------------------------------------------------------

    def sign_on(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        lanes = {"consumer": consumer, "lanes": LANES}
        yield from connection.execute(self._sql["make_lanes"], lanes)
        yield from connection.execute(self._sql["forget_workers"], {"consumer": consumer})
        yield from connection.execute(self._sql["sign_on"], _named(consumer, worker))

    def sign_off(self, connection: Connection, consumer: str, worker: Worker) -> Steps[None]:
        yield from connection.execute(self._sql["sign_off"], _named(consumer, worker))

    def is_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """To take what is ready costs no more than to look for it."""
        yield from ()
        return True

    def others(self, connection: Connection, consumer: str, worker: Worker) -> Steps[int]:
        found = yield from connection.fetch(self._sql["others"], _named(consumer, worker))
        return len(rows.alive(found))

    def take(self, connection: Connection, consumer: str, worker: Worker) -> Steps[Taken]:
        params = {
            "consumer": consumer,
            "limit": worker.batch,
            "lanes": LANES_AT_ONCE,
            "timeout": _milliseconds(worker.timeout),
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
        if row.message.key is not None:
            yield from self._park(connection, consumer, [(row.message.key, row.seq)])
        return int(found[0][0])

    def take_alone(
        self, connection: Connection, row: Stored, token: int, timeout: float
    ) -> Steps[Taken | None]:
        params = {"seq": row.seq, "token": token, "timeout": _milliseconds(timeout)}
        found = yield from connection.fetch(self._sql["take_alone"], params)
        xid = found[0][0]
        return None if xid is None else Taken([row], xid)

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
        self, connection: Connection, consumer: str, rows: Sequence[Stored]
    ) -> Steps[list[Stored]]:
        params = {
            "consumer": consumer,
            "seqs": [row.seq for row in rows],
            "origins": [row.message.origin for row in rows],
            "ids": [row.message.id for row in rows],
            "replays": [row.replay for row in rows],
            "numbers": [row.attempts for row in rows],
        }
        gone = {row[0] for row in (yield from connection.fetch(self._sql["vanished"], params))}
        return [row for row in rows if row.seq in gone]

    def count_deaths(self, connection: Connection, consumer: str) -> Steps[int]:
        found = yield from connection.fetch(self._sql["count_deaths"], {"consumer": consumer})
        return int(found[0][0])

    def end_overdue(self, connection: Connection) -> Steps[None]:
        yield from connection.fetch(self._sql["end_overdue"], {})

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
            "ids": None if matching.ids is None else list(matching.ids),
            "consumer": consumer,
            "limit": limit,
            "after": after,
            "up_to": rows.LAST if up_to is None else up_to,
        }
        found = yield from connection.fetch(self._sql["find_dead"], params)
        return [rows.dead_letter(row) for row in found]

    def lock_dead(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter]
    ) -> Steps[list[DeadLetter]]:
        level = yield from connection.fetch(self._sql["isolation"], {})
        if level[0][0] != "read committed":  # what the locks are waited for could not be seen
            raise ConfigurationError(TOO_STRICT)
        keys = rows.keys_of(letters)
        yield from self._lock_keys(connection, consumer, keys)
        locked = {"consumer": consumer, "keys": keys}
        busy = {row[0] for row in (yield from connection.fetch(self._sql["busy_keys"], locked))}
        known = {"consumer": consumer, "ids": [letter.id for letter in letters]}
        there = {row[0] for row in (yield from connection.fetch(self._sql["still_dead"], known))}
        return [letter for letter in letters if letter.id in there and letter.key not in busy]

    def revive(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        ids = [letter.id for letter in letters]
        lanes = [lane(letter.key or letter.message_id or "") for letter in letters]
        params = {"consumer": consumer, "ids": ids, "lanes": lanes}
        yield from connection.execute(self._sql["revive"], params)
        yield from self._park(connection, consumer, rows.heads(letters))
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._act(connection, consumer, letters, deed)

    def bury(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {"consumer": consumer, "ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["bury"], params)
        yield from self._release(connection, consumer, rows.keys_of(letters))
        yield from self._act(connection, consumer, letters, deed)

    def _act(
        self, connection: Connection, consumer: str, letters: Sequence[DeadLetter], deed: Deed
    ) -> Steps[None]:
        params = {
            **msgspec.structs.asdict(deed),
            "consumer": consumer,
            "ids": [letter.id for letter in letters],
            "origins": [letter.origin for letter in letters],
            "message_ids": [letter.message_id for letter in letters],
            "reasons": [letter.reason for letter in letters],
        }
        yield from connection.execute(self._sql["act"], params)

    def lease_untold(
        self, connection: Connection, consumer: str, *, limit: int, lease: float
    ) -> Steps[list[DeadLetter]]:
        params = {"consumer": consumer, "limit": limit, "lease": lease}
        found = yield from connection.fetch(self._sql["lease_untold"], params)
        return [rows.dead_letter(row) for row in found]

    def told(self, connection: Connection, letters: Sequence[DeadLetter]) -> Steps[None]:
        ids = {"ids": [letter.id for letter in letters]}
        yield from connection.execute(self._sql["told"], ids)

    # -- the schema -------------------------------------------------------------------------------

    def migrate(self, connection: Connection) -> Steps[list[str]]:
        lock = {"lock": lock_number(self.scope, "migrations")}
        yield from connection.fetch(self._sql["lock_migrations"], lock)
        return (yield from super().migrate(connection))


def _stored(row: Sequence[Any]) -> Stored:
    lane_, seq, *common, attempts, alone, deaths, replay, last_error = row
    message, delivery = rows.message_of(*common)
    return Stored(message, delivery, lane_, seq, attempts, alone, deaths, replay, last_error)


def _named(consumer: str, worker: Worker) -> rows.Row:
    return {
        "consumer": consumer,
        "name": worker.name,
        "incarnation": worker.incarnation,
        "batch": worker.batch,
        "patience": worker.patience,
    }


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.0f}ms"


def _column(values: list[Any]) -> list[Any] | None:
    """An array, or None where it holds nothing: unnest() fills it up, and we need not send it."""
    return values if any(value is not None for value in values) else None
