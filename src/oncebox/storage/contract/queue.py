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
        """Where one can listen for what is stored; None where one cannot."""
        ...

    def sign_on(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        """Note that a worker is there, and alive."""
        ...

    def sign_off(self, connection: Connection, consumer: str, worker: WorkerInfo) -> Steps[None]:
        """A worker stops cleanly."""
        ...

    def has_work(self, connection: Connection, consumer: str) -> Steps[bool]:
        """Whether anything is ready or due; takes no locks."""
        ...

    def count_other_workers(
        self, connection: Connection, consumer: str, worker: WorkerInfo
    ) -> Steps[int]:
        """How many other workers are alive, as far as can be told."""
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
        """Wake what is due, lock lanes that have ready messages, and read these in order.

        Where something was woken that others would have to wait for, nothing is taken yet. `floors`
        change how long this takes, never what is found.
        """
        ...

    def raise_floors(
        self, connection: Connection, consumer: str, worker: WorkerInfo, floors: Floors
    ) -> Steps[Floors]:
        """Return where take() may begin to search from now on.

        Begin with NO_FLOORS, and pass what the last call returned, each call in a transaction of
        its own. The worker must have signed on.
        """
        ...

    def clear_crash_evidence(
        self, connection: Connection, consumer: str, rows: Sequence[PendingMessage], token: Any
    ) -> Steps[None]:
        """This worker rolled back the transaction that took these rows: nobody died."""
        ...

    def remove(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        """Take messages out of the lanes that are locked: the claim of what was stored."""
        ...

    def postpone(
        self,
        connection: Connection,
        consumer: str,
        row: PendingMessage,
        *,
        delay: float,
        died: bool = False,
        error: str | None = None,
    ) -> Steps[int]:
        """Let a message, and what follows it in its key, wait for `delay` seconds.

        With `died` it is recorded in advance that it killed its process. Answers its token.
        """
        ...

    def take_isolated(
        self, connection: Connection, row: PendingMessage, token: int, timeout: float
    ) -> Steps[TakenBatch | None]:
        """Take out the message that runs alone; None where somebody overtook us."""
        ...

    def lock_key(self, connection: Connection, consumer: str, key: str | None) -> Steps[None]:
        """Wait for the lock of a key, and have it; where all is locked, it is had."""
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
        """The process did not die; a run that had begun counts as an attempt."""
        ...

    def isolate(self, connection: Connection, rows: Sequence[PendingMessage]) -> Steps[None]:
        """Mark messages to run alone."""
        ...

    def find_vanished(
        self,
        connection: Connection,
        consumer: str,
        rows: Sequence[PendingMessage],
        *,
        within: float,
    ) -> Steps[list[PendingMessage]]:
        """Those of these messages that are there no more, and that nobody ran within so many
        seconds."""
        ...

    def count_crashes(self, connection: Connection, consumer: str) -> Steps[int]:
        """How many messages run alone, or have killed their process lately."""
        ...

    def end_overdue_transactions(self, connection: Connection) -> Steps[None]:
        """End transactions that were left behind, where the server cannot do so itself."""
        ...
