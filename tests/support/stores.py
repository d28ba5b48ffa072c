"""A store with transactions of its own, and rows for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncebox.model.dead_letter import DeadLetter
from oncebox.model.message import Delivery, Message, content_hash
from oncebox.model.outcome import Kind, Outcome, Reason
from oncebox.storage.drivers.connect import target
from oncebox.storage.records import (
    Arrival,
    AuditEntry,
    Claims,
    Entry,
    PendingMessage,
    TakenBatch,
    WorkerInfo,
)
from oncebox.storage.sql.names import Names
from oncebox.storage.steps import run
from oncebox.storage.stores import store_for
from support.services import wait_until

STORES = ("sqlite", "postgres")
locks_rows = pytest.mark.parametrize("harness", ["postgres"], indirect=True)
"""Only PostgreSQL: on SQLite one transaction excludes all others."""

NOW = datetime.now(UTC)
FAILED_ONCE: dict[str, Any] = {"attempts": 1, "ran": True, "error": ValueError("x")}
RETRYING: dict[str, Any] = {"retry_in": timedelta(minutes=1), **FAILED_ONCE}
WORKER = WorkerInfo("elsewhere:1:0", "0.1.us", batch=100, timeout=60, heartbeat_timeout=90)
AUDIT = AuditEntry("retry", "ada", "fixed")


class StoreHarness:
    """A store and transactions for it."""

    def __init__(self, dialect: str, url: str) -> None:
        self.store = store_for(dialect, Names())
        self.database = target(url, pipeline=True).make(False)
        run(self.database.open())
        with self.transaction() as work:
            self.applied = run(self.store.migrate(work))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        work = self.database.work()
        run(self.database.acquire(work))
        try:
            run(work.begin())
            yield work
            run(work.commit())
        finally:
            run(work.rollback())
            run(self.database.release(work))

    def claim(self, work: Any, *arrivals: Arrival, consumer: str = "c", **options: Any) -> Claims:
        return run(self.store.claim(work, consumer, arrivals, **options))

    def record(self, *entries: Entry, **options: Any) -> None:
        with self.transaction() as work:
            run(self.store.record(work, "c", "w:0", entries, **options))

    def receive(self, *arrivals: Arrival, **options: Any) -> str:
        with self.transaction() as work:
            return run(self.store.receive(work, "c", arrivals, **options)).answers

    def call(self, name: str, /, *args: Any, **options: Any) -> Any:
        """A method of the store, in a transaction of its own."""
        with self.transaction() as work:
            return run(getattr(self.store, name)(work, *args, **options))

    def take(self, worker: WorkerInfo = WORKER) -> TakenBatch:
        """What there is to take, without taking it out."""
        self.call("sign_on", "c", worker)
        taken: TakenBatch = self.call("take", "c", worker)
        while taken.again:
            assert not taken.rows
            taken = self.call("take", "c", worker)
        return taken

    def taken(self, worker: WorkerInfo = WORKER) -> list[str]:
        return sorted(row.message.id for row in self.take(worker).rows)

    def stored(self, id: str) -> PendingMessage:
        """A ready message, as it is taken."""
        return next(row for row in self.take().rows if row.message.id == id)

    def letters(self, ids: Any = None, **matching: Any) -> list[DeadLetter]:
        found: list[DeadLetter] = self.call("find_dead_letters", "c", matching, ids=ids, limit=100)
        return found

    def pending(self) -> dict[str, str]:
        """What still has to run: ready, retrying or blocked."""
        infinity = "'infinity'" if self.store.dialect == "postgres" else str(2**63 - 1)
        state = (
            "CASE WHEN available_at IS NULL THEN 'ready' "
            f"WHEN available_at = {infinity} THEN 'blocked' ELSE 'retrying' END"
        )
        rows = self.query(f"SELECT message_id, {state} FROM oncebox_pending ORDER BY seq")
        return dict(rows)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.transaction() as work:
            return [tuple(row) for row in run(work.fetch(sql, {}))]


def arrival(id: str, *, body: bytes | None = b"{}", **properties: Any) -> Arrival:
    message = Message(
        id, body or b"", content_hash=None if body is None else content_hash(body), **properties
    )
    return Arrival(message, Delivery(body or b"", source="s", coordinates="0/1"))


def entry(kind: Kind, id: str, seq: int, *, key: str | None = None, **more: Any) -> Entry:
    names = ("blocks_key", "ready", "isolated", "ran", "duration", "stored")
    fields = {name: more.pop(name) for name in names if name in more}
    made = arrival(id, key=key)
    return Entry(Outcome(kind, made.delivery, made.message, **more), seq=seq, **fields)


def store_messages(harness: StoreHarness) -> PendingMessage:
    """The first of three messages of a key, ready to be run."""
    harness.receive(*[arrival(str(n), key="k") for n in (1, 2, 3)], arrival("4", key="l"))
    return harness.stored("1")


def state(harness: StoreHarness, id: str) -> tuple[Any, ...]:
    (row,) = harness.query(
        f"SELECT attempts, crashes, last_error FROM oncebox_pending WHERE message_id = '{id}'"
    )
    return row


def head(id: str, seq: int, *, key: str = "k", **more: Any) -> PendingMessage:
    """What was taken out a moment ago."""
    made = arrival(id, key=key)
    return PendingMessage(made.message, made.delivery, 0, seq, **more)


@contextmanager
def blocking_transaction(harness: StoreHarness) -> Iterator[tuple[Any, list[str]]]:
    """A transaction for whose end a message of the key has to wait; gives its answer then."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(harness.receive(arrival("9", key="k"))))
    sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with harness.transaction() as work:
        yield work, answers
        run(work.fetch("SELECT 1", {}))  # what was queued until now is executed
        thread.start()
        wait_until(lambda: bool(answers) or harness.query(sql)[0][0] > 0, "no transaction waits")
        assert answers == [], "it did not wait"
    thread.join()


def record_dead_letters(harness: StoreHarness) -> None:
    """Record two dead letters of a key, the messages they block, and one without a key."""
    rejected: dict[str, Any] = {"reason": Reason.rejected, "error": ValueError("x"), "attempts": 3}
    harness.record(
        entry(Kind.dead, "1", 1, key="k", blocks_key=True, **rejected),
        entry(Kind.blocked, "2", 2, key="k"),
        entry(Kind.dead, "3", 3, key="k", blocks_key=True, **rejected),
        entry(Kind.blocked, "4", 4, key="k"),
        entry(Kind.dead, "5", 5, **rejected),
    )


def finish(harness: StoreHarness, *arrivals: Arrival, **options: Any) -> None:
    """Claim messages, and let them be done."""
    with harness.transaction() as work:
        assert set(harness.claim(work, *arrivals, **options).answers) == {"n"}


def moment(harness: StoreHarness, at: datetime) -> str:
    """A time as the database stores it."""
    if harness.store.dialect == "postgres":
        return f"'{at.isoformat()}'"
    return str(round(at.timestamp() * 1_000_000))


def make_older(
    harness: StoreHarness,
    age: timedelta,
    where: str = "true",
    *,
    table: str = "inbox",
    column: str = "received_at",
) -> None:
    """Move a time of rows into the past."""
    seconds = int(age.total_seconds())
    earlier = (
        f"{column} - interval '{seconds} seconds'"
        if harness.store.dialect == "postgres"
        else f"{column} - {seconds} * 1000000"
    )
    with harness.transaction() as work:
        run(work.execute(f"UPDATE oncebox_{table} SET {column} = {earlier} WHERE {where}", {}))


def purge_all(harness: StoreHarness, watermark: datetime) -> int:
    """Purge every window; returns the number of purged messages."""
    windows = harness.call("old_windows", "c", watermark)
    return sum(harness.call("purge", "c", watermark, window) for window in windows)


def stored_ids(harness: StoreHarness) -> list[str]:
    """The ids of all messages, sorted."""
    return sorted(id for (id,) in harness.query("SELECT message_id FROM oncebox_inbox"))
