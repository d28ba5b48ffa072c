"""Claims on SQLite. The transaction holds the write lock from its start, so it can read first."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from oncebox.errors import ConfigurationError
from oncebox.model.message import Message, headers_json
from oncebox.storage.contract import Connection, Guarded
from oncebox.storage.records import Arrival, Claims, ClaimState, Entry
from oncebox.storage.sql import rows
from oncebox.storage.sql.migrations import SqlSchema
from oncebox.storage.sql.names import Names
from oncebox.storage.sqlite.values import BLOCKED, MINUTE, json, microseconds, now
from oncebox.storage.steps import Steps


class SqliteClaims(SqlSchema):
    """Claims and outcomes. The write lock of BEGIN IMMEDIATE replaces all other locks."""

    dialect = "sqlite"
    is_exclusive = True

    def __init__(self, names: Names) -> None:
        if names.schema is not None:
            raise ConfigurationError("SQLite has no schemas: use a prefix")
        super().__init__(names)
        self.scope = names.prefix

    def _meta_name(self) -> str:
        return f"{self.names.prefix}schema_version"

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
        by_caller: bool = False,
    ) -> Steps[Claims]:
        # A transaction of a caller, of Django or of an engine may only have read until now.
        yield from connection.execute(self._sql["take_write_lock"], {})
        known = yield from self._known(connection, consumer, arrivals)
        at = now()
        seqs, watermark = yield from self._insert(
            connection, consumer, arrivals, known, keep_payload, at, by_caller
        )
        waiting = (yield from self._waiting(connection, consumer, arrivals)) if ordered else {}
        answers = "".join(
            _state_of(arrival, seq, known.get(n), waiting, watermark)
            for n, (arrival, seq) in enumerate(zip(arrivals, seqs, strict=True))
        )
        if ordered:  # a unit of work, which has a guard; a caller's own transaction has none
            yield from connection.execute(self._sql["probe"], {})
        return Claims(answers, seqs, at)

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
        yield from self.store_received(connection, consumer, arrivals, claims)
        return claims

    def store_received(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        new = [
            _bound({"consumer": consumer, **row}, now())
            for row in rows.received_rows(arrivals, claims)
        ]
        if new:
            yield from connection.execute_many(self._sql["store_pending"], new)

    def _known(
        self, connection: Connection, consumer: str, arrivals: Sequence[Arrival]
    ) -> Steps[dict[int, bytes | None]]:
        pairs = json([(a.message.origin, a.message.id) for a in arrivals])
        params = {"consumer": consumer, "messages": pairs}
        found = yield from connection.fetch(self._sql["known"], params)
        known = {row[0]: row[1] for row in found}
        # If the batch has an id twice with different payloads, the second one is the mismatch.
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
        at: int,
        by_caller: bool,
    ) -> Steps[tuple[list[int | None], int | None]]:
        """Insert the new messages. Returns their seqs, and the watermark of the purge."""
        seqs: list[int | None] = [None] * len(arrivals)
        new = [n for n in range(len(arrivals)) if n not in known]
        if not new:
            return seqs, None
        params = {"count": len(new), "consumer": consumer}
        ((last, watermark),) = yield from connection.fetch(self._sql["draw_seq"], params)
        for seq, n in enumerate(new, start=last - len(new) + 1):
            seqs[n] = seq
        inserted = [
            inbox_row(
                consumer, seqs[n], arrivals[n], at, keep_payload=keep_payload, by_caller=by_caller
            )
            for n in new
        ]
        yield from connection.execute_many(self._sql["insert"], inserted)
        return seqs, watermark

    def _draw_seqs(self, connection: Connection, consumer: str, count: int) -> Steps[int]:
        """Draw arrival numbers. Returns the first of them."""
        params = {"count": count, "consumer": consumer}
        ((last, _),) = yield from connection.fetch(self._sql["draw_seq"], params)
        return int(last) - count + 1

    def _waiting(
        self, connection: Connection, consumer: str, arrivals: Sequence[Arrival]
    ) -> Steps[dict[str, bool]]:
        keys = {a.message.key for a in arrivals if a.message.key is not None}
        if not keys:
            return {}
        params = {"consumer": consumer, "keys": json(sorted(keys))}
        found = yield from connection.fetch(self._sql["waiting"], params)
        return {row[0]: bool(row[1]) for row in found}

    def committed_claims(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[Message, int]],
        token: Any,
    ) -> Steps[set[int]]:
        params = {
            "consumer": consumer,
            "messages": json([(m.origin, m.id, seq) for m, seq in messages]),
            "received_at": token,
        }
        return {
            row[0] for row in (yield from connection.fetch(self._sql["committed_claims"], params))
        }

    def count_failures(self, connection: Connection, consumer: str, message: Message) -> Steps[int]:
        yield from connection.execute(self._sql["take_write_lock"], {})
        params = {"consumer": consumer, "origin": message.origin, "message_id": message.id}
        found = yield from connection.fetch(self._sql["count_failures"], params)
        return int(found[0][0])

    def release_claims(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        new = [{"seq": seq} for seq in claims.seqs if seq is not None]
        yield from connection.execute_many(self._sql["release_claims"], new)

    def record(
        self,
        connection: Connection,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        has_on_dead: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        at = now()
        context = {
            "consumer": consumer,
            "worker": worker,
            "ended_at": at,
            "dead_at": at,
            "notify_at": at if has_on_dead else None,
        }
        left = rows.to_store(entries)
        for name, table in (
            ("store_pending", rows.pending_rows(left)),
            ("store_dead_letters", rows.dead_rows(left)),
            ("store_attempts", rows.attempt_rows(left)),
        ):
            if table:
                bound = [_bound({**context, **row}, at) for row in table]
                yield from connection.execute_many(self._sql[name], bound)
        yield from self._block_followers(connection, consumer, rows.keys_to_block(left))
        yield from self._release(connection, consumer, rows.keys_to_release(left))
        yield from self._count(connection, consumer, worker, rows.counters(entries))

    def _count(
        self, connection: Connection, consumer: str, worker: str, counters: rows.Row
    ) -> Steps[None]:
        at = now()
        context = {"consumer": consumer, "worker": worker, "minute": at - at % MINUTE}
        yield from connection.execute(self._sql["count"], {**context, **counters})

    def _block_followers(
        self, connection: Connection, consumer: str, keys_to_block: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        for key, seq in keys_to_block:
            params = {"consumer": consumer, "key": key, "seq": seq}
            yield from connection.execute(self._sql["block_followers"], params)

    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        if keys:
            params = [{"consumer": consumer, "key": key} for key in keys]
            yield from connection.execute_many(self._sql["release"], params)

    def _limit_lock_wait(self, connection: Connection) -> Steps[None]:
        """Nothing to do: the transaction already holds the only lock."""
        yield from ()

    def channel(self, consumer: str) -> str | None:
        """None: SQLite cannot notify other processes."""
        return None

    def guard(self, work: Guarded, token: Any) -> None:
        work.guard = (self._sql["guard"], {})


def _state_of(
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
        return ClaimState.payload_mismatch if differs else ClaimState.duplicate
    produced = microseconds(message.produced_at)
    if watermark is not None and produced is not None and produced < watermark:
        return ClaimState.too_late
    if message.key is None or message.key not in waiting:
        return ClaimState.new
    return ClaimState.blocked if waiting[message.key] else ClaimState.queued


def inbox_row(
    consumer: str,
    seq: int | None,
    arrival: Arrival,
    at: int,
    *,
    keep_payload: bool,
    by_caller: bool = False,
) -> rows.Row:
    """A row of the inbox table."""
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
        "produced_at": microseconds(message.produced_at),
        "received_at": at,
        "by_caller": by_caller or None,
    }


def _bound(row: rows.Row, at: int) -> rows.Row:
    """The row with its times as integers."""
    if "occurred_at" in row:
        row["occurred_at"] = microseconds(row["occurred_at"])
    if "delay" in row:
        delay = row.pop("delay")
        blocked = BLOCKED if delay == inf else None
        row["available_at"] = blocked if delay in (None, inf) else at + round(delay * 1_000_000)
    return row
