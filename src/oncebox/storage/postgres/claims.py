"""Claims on PostgreSQL: one function call claims a batch, few statements record its outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oncebox.errors import ConfigurationError, Conflict
from oncebox.model.message import Message, headers_json
from oncebox.model.ordering import lane, lock_number
from oncebox.storage.contract import Connection, Guarded
from oncebox.storage.records import TOO_STRICT, Arrival, Claims, Entry
from oncebox.storage.sql import rows
from oncebox.storage.sql.migrations import SqlSchema
from oncebox.storage.sql.names import Names
from oncebox.storage.steps import Steps


class PostgresClaims(SqlSchema):
    """Claims, outcomes, and the locks of keys."""

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
        if len(arrivals) == 1:
            params = self._single(consumer, arrivals[0], ordered=ordered, timeout=timeout)
            params["any_snapshot"] = any_snapshot
            if not keep_payload:
                params["payload"] = None
            return (yield from self._claimed_single(connection, params))
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
        params["isolated"] = _column([a.delivery.redelivered or None for a in arrivals])
        return (yield from self._claimed(connection, "receive", params))

    def store_received(
        self,
        connection: Connection,
        consumer: str,
        arrivals: Sequence[Arrival],
        claims: Claims,
    ) -> Steps[None]:
        new = rows.received_rows(arrivals, claims)
        if new:
            params = {"consumer": consumer, **_columns(new)}
            yield from connection.execute(self._sql["store_pending"], params)

    def _claimed(self, connection: Connection, name: str, params: rows.Row) -> Steps[Claims]:
        found = yield from connection.fetch(self._sql[name], params)
        answers, seqs, xid = found[0]
        return Claims(answers or "", seqs or [], xid)

    def _claimed_single(self, connection: Connection, params: rows.Row) -> Steps[Claims]:
        found = yield from connection.fetch(self._sql["claim_single"], params)
        answer, seq, xid = found[0]
        return Claims(answer, [seq], xid)

    def _single(
        self, consumer: str, arrival: Arrival, *, ordered: bool, timeout: float | None
    ) -> rows.Row:
        """One message as scalars."""
        message, delivery = arrival.message, arrival.delivery
        return {
            "consumer": consumer,
            "lock": self._lock(consumer, message.key) if ordered else None,
            "origin": message.origin,
            "message_id": message.id,
            "type": message.type,
            "version": message.version,
            "key": message.key,
            "payload": message.payload,
            "content_hash": message.content_hash,
            "headers": headers_json(message.headers),
            "source": delivery.source,
            "coordinates": delivery.coordinates,
            "occurred_at": message.occurred_at,
            "produced_at": message.produced_at,
            "timeout": milliseconds(timeout),
        }

    def _arrived(
        self, consumer: str, arrivals: Sequence[Arrival], *, ordered: bool, timeout: float | None
    ) -> rows.Row:
        """The messages as columns: one array per field."""
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
            "produced": _column([m.produced_at for m in messages]),
            "timeout": milliseconds(timeout),
        }

    def _locks(self, consumer: str, keys: Iterable[str | None]) -> list[int]:
        scope = f"{self.scope}\0{consumer}"
        return sorted({lock_number(scope, key) for key in keys if key})

    def _lock(self, consumer: str, key: str | None) -> int | None:
        return lock_number(f"{self.scope}\0{consumer}", key) if key else None

    def _purge_lock(self, consumer: str) -> int:
        """The advisory lock that purges share. The NUL keeps it apart from the locks of keys."""
        return lock_number(self.scope, f"\0forgetting\0{consumer}")

    def _check_isolation(self, connection: Connection) -> Steps[None]:
        """Raise unless each statement sees what other transactions committed before it.

        Otherwise the transaction could not see the changes of the transaction whose lock it waited
        for.
        """
        level = yield from connection.fetch(self._sql["isolation"], {})
        if level[0][0] != "read committed":
            raise ConfigurationError(TOO_STRICT)

    def _read_committed(self, connection: Connection) -> Steps[None]:
        """Set READ COMMITTED, before any other statement of the transaction.

        Statements then see the changes of the transaction whose lock they waited for.
        """
        yield from connection.execute(self._sql["read_committed"], {})

    def _limit_lock_wait(self, connection: Connection) -> Steps[None]:
        yield from connection.fetch(self._sql["limit_lock_wait"], {})

    def _lock_keys(
        self, connection: Connection, consumer: str, keys: Iterable[str | None]
    ) -> Steps[None]:
        if locks := self._locks(consumer, keys):
            yield from connection.execute(self._sql["lock_keys"], {"locks": locks})

    def committed_claims(
        self,
        connection: Connection,
        consumer: str,
        messages: Sequence[tuple[Message, int]],
        token: Any,
    ) -> Steps[set[int]]:
        yield from self._lock_keys(connection, consumer, [message.key for message, _ in messages])
        state = yield from connection.fetch(self._sql["transaction_state"], {"xid": token})
        if state[0][0] == "in progress":
            raise Conflict
        params = {
            "consumer": consumer,
            "origins": [message.origin for message, _ in messages],
            "ids": [message.id for message, _ in messages],
            "seqs": [seq for _, seq in messages],
        }
        return {
            row[0] for row in (yield from connection.fetch(self._sql["committed_claims"], params))
        }

    def count_failures(self, connection: Connection, consumer: str, message: Message) -> Steps[int]:
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
        new = [a.message for a, seq in zip(arrivals, claims.seqs, strict=True) if seq is not None]
        params = {
            "consumer": consumer,
            "origins": [message.origin for message in new],
            "ids": [message.id for message in new],
        }
        yield from connection.execute(self._sql["release_claims"], params)

    def record(
        self,
        connection: Guarded,
        consumer: str,
        worker: str,
        entries: Sequence[Entry],
        *,
        has_on_dead: bool = False,
        notify: bool = False,
    ) -> Steps[None]:
        context = {"consumer": consumer, "worker": worker, "has_on_dead": has_on_dead}
        left = rows.to_store(entries)
        if left:
            yield from self._record(connection, context, left)
        if notify and rows.has_ready(left):
            channel = {"channel": self.channel(consumer)}
            yield from connection.execute(self._sql["notify"], channel)
        yield from self._count(connection, {**context, **rows.counters(entries)})

    def _count(self, connection: Guarded, counts: rows.Row) -> Steps[None]:
        """Add to the counters. If the commit has a guard, the statement of the guard does that."""
        if connection.guard is None:
            yield from connection.execute(self._sql["count"], counts)
        else:
            xid = connection.guard[1]["xid"]
            connection.guard = (self._sql["count_and_guard"], {**counts, "xid": xid})

    def _record(
        self, connection: Connection, context: rows.Row, left: Sequence[Entry]
    ) -> Steps[None]:
        """Record the entries that need more than a counter. Locks their keys first."""
        consumer = context["consumer"]
        is_plain = rows.is_plain(left)
        keys_to_block = [] if is_plain else rows.keys_to_block(left)
        keys_to_release = [] if is_plain else rows.keys_to_release(left)
        yield from self._lock_keys(connection, consumer, [*dict(keys_to_block), *keys_to_release])
        if not is_plain:
            for name, table in (
                ("store_pending", rows.pending_rows(left)),
                ("store_dead_letters", rows.dead_rows(left)),
            ):
                if table:
                    params = {**context, **_columns(table)}
                    yield from connection.execute(self._sql[name], params)
        if any(entry.ran for entry in left):
            attempts = rows.attempt_columns(left)
            yield from connection.execute(self._sql["store_attempts"], {**context, **attempts})
        yield from self._block_followers(connection, consumer, keys_to_block)
        yield from self._release(connection, consumer, keys_to_release)

    def _block_followers(
        self, connection: Connection, consumer: str, keys_to_block: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        if keys_to_block:
            keys, seqs = zip(*keys_to_block, strict=True)
            params = {"consumer": consumer, "keys": list(keys), "seqs": list(seqs)}
            yield from connection.execute(self._sql["block_followers"], params)

    def _release(self, connection: Connection, consumer: str, keys: Sequence[str]) -> Steps[None]:
        if keys:
            params = {"consumer": consumer, "keys": list(keys)}
            yield from connection.execute(self._sql["release"], params)

    def channel(self, consumer: str) -> str | None:
        return f"oncebox_{lock_number(self.scope, consumer) & (2**64 - 1):016x}"

    # record() replaces this guard by the statement count_and_guard, which saves one statement.

    def guard(self, work: Guarded, token: Any) -> None:
        work.guard = (self._sql["guard"], {"xid": token})

    def migrate(self, connection: Connection, *, claims_only: bool = False) -> Steps[list[str]]:
        lock = {"lock": lock_number(self.scope, "migrations")}
        yield from connection.fetch(self._sql["lock_migrations"], lock)
        return (yield from super().migrate(connection, claims_only=claims_only))


def milliseconds(seconds: float | None) -> str | None:
    """A time span in PostgreSQL's format."""
    return None if seconds is None else f"{seconds * 1000:.0f}ms"


def _columns(table: Sequence[rows.Row]) -> rows.Row:
    """Turn rows into columns."""
    return {name: [row[name] for row in table] for name in table[0]}


def _column(values: list[Any]) -> list[Any] | None:
    """The values, or None if all are None: unnest() fills in NULL, and less is sent."""
    return None if values.count(None) == len(values) else values
