"""Queue: workers take stored messages, lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from oncebox.storage.contract.connection import Connection
from oncebox.storage.records import (
    NO_FLOORS,
    Floors,
    PendingMessage,
    TakenBatch,
    WorkerInfo,
)
from oncebox.storage.steps import Steps


class QueueStore(Protocol):
    """Workers take stored messages, lane by lane."""

    def channel(self, consumer: str) -> str | None:
        """The channel that announces stored messages; None if the database cannot notify."""
        ...

    def sign_on(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        """Record a worker, or its next heartbeat."""
        ...

    def sign_off(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        """Delete the record of a worker that stops cleanly."""
        ...

    def has_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """True if a message is ready or a retry is due. Takes no locks."""
        ...

    def count_other_workers(
        self, connection: Connection, consumer: str, worker: WorkerInfo
    ) -> Steps[int]:
        """How many other workers are alive, as far as their heartbeats show."""
        ...

    def take(
        self,
        connection: Connection,
        consumer: str,
        worker: WorkerInfo,
        *,
        wake: bool = True,
        floors: Floors = NO_FLOORS,
    ) -> Steps[TakenBatch]:
        """Lock lanes that have ready messages, and read these in order.

        With `wake`, first make due retries ready. If other transactions would wait for the rows of
        these retries, nothing is taken: `again` is True, so that the caller commits first.
        `floors` change how long this takes, never what is found.
        """
        ...

    def raise_floors(
        self, connection: Connection, consumer: str, worker: WorkerInfo, floors: Floors
    ) -> Steps[Floors]:
        """The floors from which take() may search from now on.

        Begin with NO_FLOORS, then pass the result of the last call. Each call needs its own
        transaction. The worker must have signed on.
        """
        ...

    def clear_crash_evidence(
        self, connection: Connection, consumer: str, rows: Sequence[PendingMessage], token: Any
    ) -> Steps[None]:
        """Record that the transaction which took these rows was rolled back without a crash."""
        ...

    def remove(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        """Delete messages from locked lanes. For stored messages, this is the claim."""
        ...

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
        """Postpone a message and the messages behind it in its key by `delay` seconds.

        With `crashed`, a crash of the message is recorded in advance. Returns the token of the
        message.
        """
        ...

    def take_isolated(
        self, connection: Connection, row: PendingMessage, token: int, timeout: float
    ) -> Steps[TakenBatch | None]:
        """Delete the message that is about to run in isolation.

        Returns None if another worker was faster.
        """
        ...

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        """Wait for the lock of a key.

        Does nothing where a transaction locks the whole database.
        """
        ...

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
        """Undo a crash recorded in advance. A run that had begun counts as an attempt."""
        ...

    def isolate(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        """Mark messages to run in isolation."""
        ...

    def find_vanished(
        self,
        connection: Connection,
        consumer: str,
        rows: Sequence[PendingMessage],
        *,
        within: float,
    ) -> Steps[list[PendingMessage]]:
        """Find those of these messages that no longer exist and were not finished by another
        worker.

        A message was finished if one of its runs ended within the last `within` seconds, or if it
        is purged: a purge deletes only finished messages, with their runs.
        """
        ...

    def count_crashes(self, connection: Connection, consumer: str) -> Steps[int]:
        """Count the messages that crashed a process: pending, or dead in the last ten minutes."""
        ...

    def end_overdue_transactions(self, connection: Connection) -> Steps[None]:
        """End transactions of suspended workers, where the server cannot do that itself."""
        ...
