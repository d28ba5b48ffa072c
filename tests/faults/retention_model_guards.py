"""The guards of purges and replays, and how to remove each of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

import oncebox.operations.purge
import oncebox.processing.drain
import oncebox.storage.sql.statements
from faults import drain_worker
from oncebox.model.retention import ArrivalProgress, PurgeLimit, Retention, purge_limit
from oncebox.processing.routing import select_batch
from oncebox.storage.postgres import PostgresStore
from oncebox.storage.records import PendingMessage
from oncebox.storage.sqlite import SqliteStore


def instead(kind: type, name: str, **others: Callable[..., Any]) -> None:
    """Within a method, others are not what they are."""
    method = getattr(kind, name)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = copy(self)
        for other, function in others.items():
            setattr(twin, other, function)
        return method(twin, *args, **kwargs)

    setattr(kind, name, changed)


def nothing(*_: Any) -> Iterator[Any]:
    return iter(())


def replay_without_locks() -> None:
    instead(PostgresStore, "_store_again", _lock_keys=nothing)


def replay_without_release() -> None:
    """On PostgreSQL nothing is to be released: what is replayed waits only where its key does."""
    instead(SqliteStore, "_store_some", _release=nothing)


def pull_without_release() -> None:
    for kind in (PostgresStore, SqliteStore):
        instead(kind, "advance_sequences", _release=nothing)


def drop_items_later() -> None:
    """What was stored is taken off the list when there is something to store again."""
    for kind in (PostgresStore, SqliteStore):
        setattr(kind, "continue_replay", _dropping_later(kind.continue_replay))  # noqa: B010


def _dropping_later(go_on: Callable[..., Any]) -> Callable[..., Any]:
    left: list[tuple[str, Any]] = []

    def changed(store: Any, connection: Any, consumer: str) -> Generator[Any, Any, Any]:
        for sql, params in left:
            yield from connection.execute(sql, params)
        left.clear()
        return (yield from go_on(store, Procrastinator(connection, store, left), consumer))

    return changed


class Procrastinator:
    """A connection that puts off to take items off the list."""

    def __init__(self, connection: Any, store: Any, left: list[tuple[str, Any]]) -> None:
        self._connection = connection
        self._store = store
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, params: Any) -> Any:
        if sql != self._store._sql["drop_replayed_items"]:
            return self._connection.execute(sql, params)
        self._left.append((sql, params))
        return iter(())


def select_without_replays() -> None:
    """A replay is like anything else."""

    def changed(rows: Sequence[PendingMessage]) -> list[PendingMessage]:
        arrived = [msgspec.structs.replace(row, replay=0) for row in rows]
        kept = {row.seq for row in select_batch(arrived)}
        return [row for row in rows if row.seq in kept]

    setattr(oncebox.processing.drain, "select_batch", changed)  # noqa: B010


def watermark_without_wait() -> None:
    """The watermark does not wait for recent arrivals."""

    def changed(arrival_progress: ArrivalProgress, retention: Retention) -> PurgeLimit:
        return purge_limit(msgspec.structs.replace(arrival_progress, produced_at=None), retention)

    setattr(oncebox.operations.purge, "purge_limit", changed)  # noqa: B010


def rewritten(**files: tuple[str, str, str]) -> Callable[[], None]:
    """Other statements than those of the files, by their databases."""

    def rewrite() -> None:
        read = oncebox.storage.sql.statements._read
        for dialect, (file, old, _) in files.items():
            assert old in read(dialect, file), f"{old} is not in {file}"

        def changed(dialect: str, *path: str) -> str:
            text = read(dialect, *path)
            wanted, old, new = files.get(dialect, ("", "", ""))
            return text.replace(old, new) if path == (wanted,) else text

        oncebox.storage.sql.statements._read = changed  # type: ignore[assignment]

    return rewrite


GUARDS: Mapping[str, Callable[[], None]] = {
    **drain_worker.GUARDS,
    "key locks of replays": replay_without_locks,
    "one feeder": rewritten(postgres=("replays.sql", "LIMIT 1 FOR UPDATE SKIP LOCKED", "LIMIT 1")),
    "purge lock": rewritten(
        postgres=(
            "replays.sql",
            "SELECT pg_advisory_xact_lock(:lock::bigint)",
            "SELECT :lock::bigint",
        )
    ),
    "release of replays": replay_without_release,
    "release of numbers": pull_without_release,
    "items with messages": drop_items_later,
    "select_batch with replays": select_without_replays,
    # On PostgreSQL that is a matter of the database.
    "watermark": rewritten(sqlite=("claims.sql", "SELECT purged_before", "SELECT NULL")),
    "watermark that waits": watermark_without_wait,
}
